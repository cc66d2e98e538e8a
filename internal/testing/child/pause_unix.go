//go:build unix

package child

import (
	"errors"
	"syscall"
	"time"
)

// Pause stops the process for a while. done is false if the system does not support it.
func (p *Process) Pause(d time.Duration) (done bool, err error) {
	err = p.Signal(syscall.SIGSTOP)
	time.Sleep(d)
	return true, errors.Join(err, p.Signal(syscall.SIGCONT))
}

// dump ends the process and makes it print its goroutines.
func (p *Process) dump() {
	if p.Signal(syscall.SIGQUIT) == nil {
		select {
		case <-p.ended:
		case <-time.After(time.Second):
		}
	}
}
