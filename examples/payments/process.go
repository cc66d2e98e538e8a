package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/procs"
)

type settings struct {
	Provider string // "" for a worker
	Down     time.Duration
	Start    int // number of earlier starts
	Dir      string
	Seed     uint64

	// Of a worker:
	Worker int
	At     location
	Break  string
}

const declineOf = 5 // a provider declines one order in declineOf

// child runs a provider or a worker, and does not return, if the supervisor started this
// process.
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
