package asyncop_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// Two operators read from one database, which bears two calls at a time. Later it bears three.
func ExamplePermits() {
	var mu sync.Mutex
	running, most := 0, 0
	query := asyncop.Blocking(func(_ context.Context, key string) (string, error) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		running--
		mu.Unlock()
		return "<" + key + ">", nil
	})

	db := asyncop.NewPermits(2)
	read := func() {
		var wg sync.WaitGroup
		for range 2 {
			op := asyncop.OrderedWait(query, 5*time.Second, 100, asyncop.WithPermits(db))
			wg.Go(func() {
				for _, err := range op.Results(slices.Values(slices.Repeat([]string{"lhr"}, 20))) {
					if err != nil {
						fmt.Println(err)
					}
				}
			})
		}
		wg.Wait()
	}
	read()
	fmt.Println("at most", most)
	db.SetLimit(3)
	read()
	fmt.Println("at most", most)
	// Output:
	// at most 2
	// at most 3
}
