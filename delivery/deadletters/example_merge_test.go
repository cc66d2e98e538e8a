package deadletters_test

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deadletters"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// The bank was down. Its payments are looked at, and sent back when it works again.
func ExampleMerge() {
	ctx := context.Background()
	s := memory.Open()
	for i, provider := range []string{"bank", "wallet", "bank"} {
		m, err := store.Encode(codec.JSON[int](), 100*i, delivery.Meta{ID: fmt.Sprint("payment ", i), Provider: provider, LastError: "503", Visit: 4})
		if err != nil {
			panic(err)
		}
		m.Cause = store.Exhausted
		if err := s.Put(ctx, "dead", m); err != nil {
			panic(err)
		}
	}

	ofBank := store.Filter{Provider: "bank"}
	entries, err := s.List(ctx, "dead", ofBank, store.Page{Max: 100})
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		fmt.Printf("%s: %s, %s after %d visits\n", e.Meta.ID, e.Meta.LastError, e.Cause, e.Meta.Visit)
	}
	merged, err := deadletters.Merge(ctx, s, deadletters.Config{From: "dead", To: "payments", Filter: ofBank})
	fmt.Println(merged.Merged, err)
	// Output:
	// payment 0: 503, exhausted after 4 visits
	// payment 2: 503, exhausted after 4 visits
	// 2 <nil>
}
