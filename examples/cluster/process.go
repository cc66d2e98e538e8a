package main

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/procs"
)

// settings are those of a process.
type settings struct {
	Role string
	Name string // of a server or a provider
	Dir  string
	Seed uint64

	Cluster topology
	Client  string // of a worker: the identity of its requests
}

// The roles.
const (
	roleServer   = "server"
	roleProvider = "provider"
	roleWorker   = "worker"
)

// child is the process of a server, a provider or a worker, if the supervisor has started
// this one. It does not return then.
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
