package main

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/procs"
)

type settings struct {
	Role string
	Name string // of a server or a provider
	Dir  string
	Seed uint64

	Cluster topology
	Client  string // of a worker: identity of its requests
}

// The roles.
const (
	roleServer   = "server"
	roleProvider = "provider"
	roleWorker   = "worker"
)

// child runs a server, a provider or a worker, and does not return, if the supervisor
// started this process.
func child() {
	procs.Child(func(s settings) error {
		switch s.Role {
		case roleServer:
			return serve(s)
		case roleProvider:
			return bank.Serve(context.Background(), bank.ProviderConfig{Name: s.Name, Dir: s.Dir, Seed: s.Seed, DeclineOf: declineOf},
				func() { fmt.Println("ready") })
		}
		return work(s)
	})
}
