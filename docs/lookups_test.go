package docs_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/ext/otter/ottercache"
)

type purchase struct{ id, userID int }

type userTable struct{}

// user returns asyncop.ErrNoResult if the user does not exist.
func (userTable) user(_ context.Context, id int) (string, error) {
	if id > 2 {
		return "", asyncop.ErrNoResult
	}
	return fmt.Sprint("user ", id), nil
}

func Example_lookups() {
	db := userTable{}
	cache, err := ottercache.New(&otter.Options[int, lookup.Entry[string]]{
		MaximumSize:      10_000,
		ExpiryCalculator: otter.ExpiryWriting[int, lookup.Entry[string]](10 * time.Minute),
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	users := lookup.New(
		asyncop.Blocking(func(ctx context.Context, id int) (string, error) { return db.user(ctx, id) }),
		cache,
		lookup.WithMissTTL(10*time.Second)) // there is no such user: ask again after that
	named := lookup.Join(users,
		func(p purchase) int { return p.userID }, // the key of an element
		func(p purchase, name string) string { return fmt.Sprint(p.id, " of ", name) })
	op := asyncop.OrderedWait(named, 5*time.Second, 1000)
	for name, err := range op.Results(slices.Values([]purchase{{1, 1}})) {
		fmt.Println(name, err)
	}
	op = asyncop.OrderedWait(named, 5*time.Second, 1)
	for name, err := range op.Results(slices.Values([]purchase{{2, 1}, {3, 2}, {4, 3}, {5, 3}, {6, 1}})) {
		fmt.Println(name, err)
	}
	s := users.Stats()
	fmt.Println("hits:", s.Hits, "misses:", s.Misses, "loads:", s.Loads, "shared:", s.Shared, "errors:", s.LoadErrors)
	// Output:
	// 1 of user 1 <nil>
	// 2 of user 1 <nil>
	// 3 of user 2 <nil>
	// 6 of user 1 <nil>
	// hits: 3 misses: 3 loads: 3 shared: 0 errors: 0
}
