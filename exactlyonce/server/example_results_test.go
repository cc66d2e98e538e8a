package server_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

// A request that is sent three times takes effect once. After its client has declared it
// done, a late attempt is stale.
func ExampleResults_Do() {
	results := server.NewResults(server.Config{})
	defer results.Close(context.Background())
	balance := 100
	withdraw := func(request exactlyonce.Request) (string, error) {
		answer, found, err := results.Do(context.Background(), request, func(context.Context) ([]byte, error) {
			balance -= 30
			return fmt.Appendf(nil, "balance %d", balance), nil
		})
		return fmt.Sprintf("%v: %s", found, answer), err
	}

	id := exactlyonce.ID{Client: exactlyonce.Client{1}, Sequence: 1}
	for id.Attempt = 1; id.Attempt <= 3; id.Attempt++ {
		fmt.Println(withdraw(exactlyonce.Request{ID: id, Scope: "alice"}))
	}
	next := exactlyonce.ID{Client: id.Client, Sequence: 2, Attempt: 1, First: 2}
	fmt.Println(withdraw(exactlyonce.Request{ID: next, Scope: "alice"}))
	_, err := withdraw(exactlyonce.Request{ID: id, Scope: "alice"})
	fmt.Println(errors.Is(err, exactlyonce.ErrStale), err)

	s := results.Stats()
	fmt.Printf("%d ran, %d replayed, %d stale\n", s.New, s.Replayed, s.Stale)
	// Output:
	// false: balance 70 <nil>
	// true: balance 70 <nil>
	// true: balance 70 <nil>
	// false: balance 40 <nil>
	// true exactlyonce: stale request: it may have taken effect
	// 2 ran, 2 replayed, 1 stale
}
