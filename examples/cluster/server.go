package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
)

type topology map[string]embedded.Cluster

var serverNames = []string{"server-1", "server-2", "server-3"}

// newTopology chooses free ports for clients and for the other servers.
func newTopology() (topology, error) {
	ports, err := freePorts(2 * len(serverNames))
	if err != nil {
		return nil, err
	}
	t := topology{}
	for i, name := range serverNames {
		t[name] = embedded.Cluster{Name: "weir", Server: name, Clients: ports[2*i], Address: ports[2*i+1]}
	}
	var addresses []string
	for _, c := range t {
		addresses = append(addresses, c.Address)
	}
	for name, c := range t {
		c.Servers = addresses
		t[name] = c
	}
	return t, nil
}

// freePorts returns addresses with ports below the ephemeral range, so that they stay
// free when a server is killed.
func freePorts(n int) (addresses []string, err error) {
	for tries := 0; len(addresses) < n; tries++ {
		address := fmt.Sprintf("127.0.0.1:%d", 12_000+rand.IntN(18_000))
		l, err := net.Listen("tcp", address)
		if err != nil {
			if tries > 100 {
				return nil, err
			}
			continue
		}
		defer l.Close() //nolint:errcheck // closed at the end, so that all ports differ
		addresses = append(addresses, address)
	}
	return addresses, nil
}

func serve(s settings) error {
	here := s.Cluster[s.Name]
	_, err := embedded.Start(filepath.Join(s.Dir, s.Name), embedded.Config{Logger: quiet, Cluster: &here})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

func (t topology) dial() (jetstream.JetStream, error) {
	var urls []string
	for _, c := range t {
		urls = append(urls, "nats://"+c.Clients)
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // killed servers are noisy
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

// again retries f until it succeeds: the cluster may have no leader for a while.
func again[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	for {
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		v, err := f(within)
		cancel()
		if err == nil {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return v, errors.Join(context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const (
	stream   = "queues" // orders, with layers and dead letters, and payments
	replicas = 3
	lease    = 2 * time.Second // then other workers get a killed worker's orders
)

// openEngine opens the engine in the cluster, and makes its stream. It waits for a
// leader.
func openEngine(ctx context.Context, js jetstream.JetStream) (*weirjs.Engine, error) {
	return weirjs.New(ctx, js, weirjs.WithStream(stream), weirjs.WithReplicas(replicas), weirjs.WithLogger(quiet))
}
