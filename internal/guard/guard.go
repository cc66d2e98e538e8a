// Package guard stands between the house and code of its users, which may panic, end its goroutine (law A6), pass nil, or return
// errors whose own methods do such things.
package guard

// Guard stands around one call of user code on the caller's goroutine:
//
//	var g guard.Guard
//	defer g.Close(func(recovered any) { … })
//	call()
//	g.Returned()
//
// It is a value with two methods rather than a function that takes the call: that costs no closure.
type Guard struct{ returned bool }

// Returned says that the call has returned.
func (g *Guard) Returned() { g.returned = true }

// Close is deferred. It calls broken unless the call has returned: with the value of its panic, which ends here, or with nil if
// runtime.Goexit ends the goroutine. The stack is still that of the call.
func (g *Guard) Close(broken func(recovered any)) {
	if !g.returned {
		broken(recover())
	}
}

// Call runs f, which may block, on a goroutine of its own and waits for it. Neither a panic nor runtime.Goexit reaches the
// caller: broken makes an error of what recover returned, while the stack is still that of f; nil stands for Goexit.
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

// Each runs f for each number below n, as Call does, and returns their errors. It needs one goroutine for all of them, and one more for
// each that does not return.
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
