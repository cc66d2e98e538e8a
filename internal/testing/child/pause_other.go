//go:build !unix

package child

import "time"

// Pause stops the process for a while. done is false if the system does not support it.
func (p *Process) Pause(time.Duration) (done bool, err error) { return false, nil }

func (p *Process) dump() {}
