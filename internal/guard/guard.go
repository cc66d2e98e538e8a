// Package guard calls code of users, which may panic or end its goroutine (law A6).
package guard

// Call runs f, which may block, on a goroutine of its own and waits for it. Neither a panic nor runtime.Goexit reaches the
// caller: broken makes an error of what recover returned, while the stack is still that of f; nil stands for Goexit.
func Call(f func() error, broken func(recovered any) error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			if !returned {
				err = broken(recover())
			}
		}()
		err = f()
		returned = true
	}()
	<-done
	return err
}
