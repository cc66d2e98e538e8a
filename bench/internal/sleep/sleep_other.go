//go:build !linux

// Package sleep sleeps, for the backends of benchmarks.
package sleep

import "time"

// Sleeper sleeps with the precision of the Go runtime: see sleep_linux.go.
type Sleeper struct{}

// New returns a sleeper. The caller must close it.
func New() *Sleeper { return &Sleeper{} }

// Sleep sleeps for d.
func (*Sleeper) Sleep(d time.Duration) { time.Sleep(d) }

// Close frees the sleeper's resources.
func (*Sleeper) Close() {}
