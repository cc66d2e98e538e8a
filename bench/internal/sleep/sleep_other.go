//go:build !linux

// Package sleep sleeps, for the backends of benchmarks.
package sleep

import "time"

// Sleeper sleeps with the precision of the Go runtime: see sleep_linux.go.
type Sleeper struct{}

// New returns a sleeper, which must be closed.
func New() *Sleeper { return &Sleeper{} }

// Sleep sleeps for d.
func (*Sleeper) Sleep(d time.Duration) { time.Sleep(d) }

// Close frees what the sleeper holds.
func (*Sleeper) Close() {}
