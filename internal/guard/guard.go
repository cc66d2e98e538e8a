// Package guard protects weir from its users' code, which may panic, end its goroutine
// (law A6), pass nil, or return errors whose own methods do so.
package guard

// Guard protects the caller's goroutine during a call of user code:
//
//	var g guard.Guard
//	defer g.Close(func(recovered any) { … })
//	call()
//	g.Returned()
//
// Two methods, rather than a function that takes the call, avoid a closure.
type Guard struct{ returned bool }

// Returned records that the call has returned.
func (g *Guard) Returned() { g.returned = true }

// Close must be deferred. Unless the call has returned, it recovers and calls broken with
// the value of the panic, or nil after runtime.Goexit. debug.Stack in broken shows the
// stack of the call.
func (g *Guard) Close(broken func(recovered any)) {
	if !g.returned {
		broken(recover())
	}
}

// Call runs f, which may block, on a goroutine of its own and waits for it. If f panics
// or calls runtime.Goexit, Call returns the error of broken, as in [Guard.Close].
func Call(f func() error, broken func(recovered any) error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var g Guard
		defer g.Close(func(recovered any) { err = broken(recovered) })
		err = f()
		g.Returned()
	}()
	<-done
	return err
}

// Each calls f for i from 0 to n-1 as Call does, and returns the errors by i. It starts
// one goroutine, and another after each call that does not return.
func Each(n int, f func(i int) error, broken func(recovered any) error) []error {
	errs := make([]error, n)
	i := 0
	for i < n {
		err := Call(func() error {
			for ; i < n; i++ {
				errs[i] = f(i)
			}
			return nil
		}, broken)
		if i < n {
			errs[i] = err
			i++
		}
	}
	return errs
}
