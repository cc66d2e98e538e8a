package ottercache_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/ext/otter/ottercache"
)

// Names of airports are looked up once, and kept for ten minutes. A missing airport is
// kept for ten seconds.
func Example() {
	cache, err := ottercache.New(&otter.Options[string, lookup.Entry[string]]{
		MaximumSize:      10_000,
		ExpiryCalculator: otter.ExpiryWriting[string, lookup.Entry[string]](10 * time.Minute),
	})
	if err != nil {
		log.Fatal(err)
	}
	names := lookup.New(asyncop.Blocking(func(_ context.Context, code string) (string, error) {
		if code == "xxx" {
			return "", asyncop.ErrNoResult
		}
		return strings.ToUpper(code), nil
	}), cache, lookup.WithMissTTL(10*time.Second))

	op := asyncop.OrderedWait(names, 5*time.Second, 1000)
	for name, err := range op.Results(slices.Values([]string{"lhr", "xxx", "lhr", "lhr", "xxx"})) {
		fmt.Println(name, err)
	}
	s := names.Stats()
	fmt.Println("loads:", s.Loads, "cache hits and shared:", s.Hits+s.Shared)
	// Output:
	// LHR <nil>
	// LHR <nil>
	// LHR <nil>
	// loads: 2 cache hits and shared: 3
}
