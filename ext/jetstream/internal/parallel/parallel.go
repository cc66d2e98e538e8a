// Package parallel makes many requests at once.
package parallel

import "sync"

// limit is how many requests run at once: enough to keep a server busy over a network.
const limit = 64

// Do calls f for 0 to n-1, several at once, and waits for all.
func Do(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, limit) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
