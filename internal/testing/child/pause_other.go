//go:build !unix

package child

import "time"

// Pause stops the process for a while, where the system can do that; done is false where
// it cannot.
func (p *Process) Pause(time.Duration) (done bool, err error) { return false, nil }

func (p *Process) dump() {}
