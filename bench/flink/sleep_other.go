//go:build !linux

package flink

import "time"

// sleeper sleeps with the precision of the Go runtime: see sleep_linux.go.
type sleeper struct{}

func newSleeper() sleeper { return sleeper{} }

func (sleeper) sleep(d time.Duration) { time.Sleep(d) }
func (sleeper) close()                {}
