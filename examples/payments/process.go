package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/procs"
)

// settings are those of a process: a provider, or a worker.
type settings struct {
	Provider string // "": a worker
	Down     time.Duration
	Start    int // how often it was started before
	Dir      string
	Seed     uint64

	// Of a worker.
	Worker int
	At     location
	Break  string
}

const declineOf = 5 // a provider declines one order in so many

// child is the process of a provider or of a worker, if the supervisor has started this
// one. It does not return then.
func child() {
	procs.Child(func(s settings) error {
		if s.Provider == "" {
			return work(s)
		}
		return bank.Serve(context.Background(), bank.ProviderConfig{
			Name: s.Provider, Dir: s.Dir, Start: s.Start, Seed: s.Seed, DeclineOf: declineOf, Down: s.Down,
		}, func() { fmt.Println("ready") })
	})
}
