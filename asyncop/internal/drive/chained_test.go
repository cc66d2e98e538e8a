package drive

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// loopOver runs body as the loop of d does.
func loopOver(d *Driver[int, int], body func()) {
	begun := callers()
	d.chain.begun.Store(&begun)
	defer d.chain.begun.Store(nil)
	body()
}

// deep calls f below n more calls.
func deep(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	deep(n-1, f)
}

// Whoever is inside of a loop over results is told from all others, at whatever depth.
func TestDrives(t *testing.T) {
	a, b := new(Driver[int, int]), new(Driver[int, int])
	drives := func(d *Driver[int, int]) (here, elsewhere bool) {
		done := make(chan bool)
		go func() { done <- d.Drives() }()
		return d.Drives(), <-done
	}
	for _, depth := range []int{0, 1, 60, 61, 62, 63, 64, 65, 200} {
		deep(depth, func() {
			loopOver(a, func() {
				deep(depth, func() {
					here, elsewhere := drives(a)
					require.True(t, here)
					require.False(t, elsewhere)
					require.False(t, b.Drives())
					loopOver(b, func() {
						require.True(t, a.Drives(), "around")
						require.True(t, b.Drives())
					})
				})
			})
			require.False(t, a.Drives(), "after")
		})
	}

	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		loopOver(b, func() { close(began); <-end })
	}()
	<-began
	loopOver(a, func() { require.False(t, b.Drives(), "its loop is on another goroutine") })
	close(end)
	<-ended
}
