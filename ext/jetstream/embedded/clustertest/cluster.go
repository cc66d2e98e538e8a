// Package clustertest runs servers of NATS JetStream on loopback, for programs that kill
// servers. Each server is a new process of this program.
//
//	func TestMain(m *testing.M) {
//		clustertest.Child()
//		os.Exit(m.Run())
//	}
//
//	cluster, err := clustertest.Start(clustertest.Config{Dir: t.TempDir(), Servers: 3})
//	…
//	defer cluster.Close()
//	js, err := clustertest.Connect(cluster.URL())
//	…
//	leader, err := cluster.Leader(ctx, js, "orders")
//	…
//	err = cluster.Kill(leader)
//	…
//	err = cluster.Restart(leader)
package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/internal/testing/child"
)

const (
	name     = "nats-server" // of the children
	patience = time.Minute
	oneTry   = time.Second
	retry    = 20 * time.Millisecond // between tries

	maxPayload = 8 << 20 // of a message, in bytes
)

// Config configures the servers of [Start]. They sync each write, and take messages of 8
// MiB.
type Config struct {
	Dir     string // has a directory for each server
	Servers int    // 1, 3 or 5

	// Disks are the disk sizes of some servers, by number, in bytes; the others share the
	// disk of Dir. Such a disk is in memory and is lost with the process. Start returns
	// an error where a process may not mount one, and on systems other than Linux.
	Disks map[int]int64
}

type settings struct {
	Dir     string
	Cluster embedded.Cluster
	Disk    int64
}

// Child runs a server of a cluster, and does not return, if [Start] started this process.
// TestMain or main must call it first.
func Child() { child.Run(name, serve) }

func serve(arg string) error {
	var s settings
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return err
	}
	if s.Disk > 0 {
		if err := mount(s.Dir, s.Disk); err != nil {
			return fmt.Errorf("a disk of %d bytes: %w", s.Disk, err)
		}
	}
	config := embedded.Config{
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Cluster: &s.Cluster,
		Options: func(o *server.Options) {
			o.MaxPayload = maxPayload
			if len(s.Cluster.Servers) == 1 {
				o.Cluster, o.Routes = server.ClusterOpts{}, nil
			}
		},
	}
	if _, err := embedded.Start(s.Dir, config); err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

// Cluster is the servers of a cluster. It is not safe for concurrent use.
type Cluster struct {
	settings []settings
	servers  []*child.Process // nil: it does not run
}

// Start starts servers, and returns when they can keep streams with a replica on each.
// The cluster must be closed.
func Start(c Config) (*Cluster, error) {
	ports, err := freePorts(2 * c.Servers)
	if err != nil {
		return nil, err
	}
	all := &Cluster{settings: make([]settings, c.Servers), servers: make([]*child.Process, c.Servers)}
	var routes []string
	for i := range c.Servers {
		routes = append(routes, ports[2*i+1])
	}
	for i := range c.Servers {
		n := strconv.Itoa(i)
		all.settings[i] = settings{
			Dir: filepath.Join(c.Dir, "server"+n), Disk: c.Disks[i],
			Cluster: embedded.Cluster{Name: "test", Server: "s" + n, Clients: ports[2*i], Address: ports[2*i+1], Servers: routes},
		}
	}
	if err := all.begin(); err != nil {
		all.Close()
		return nil, err
	}
	return all, nil
}

// freePorts returns addresses for listeners. Their ports are below the range of outgoing
// connections, so a killed server finds them free when it restarts.
func freePorts(n int) (addresses []string, err error) {
	var open []io.Closer
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for try := 0; len(addresses) < n; try++ {
		address := "127.0.0.1:" + strconv.Itoa(12_000+rand.IntN(20_000))
		l, err := net.Listen("tcp", address)
		if err != nil {
			if try > 100 {
				return nil, err
			}
			continue
		}
		open, addresses = append(open, l), append(addresses, address)
	}
	return addresses, nil
}

func (c *Cluster) begin() error {
	for i := range c.servers { // together: they wait for each other
		if err := c.launch(i); err != nil {
			return err
		}
	}
	for i := range c.servers {
		if _, err := c.servers[i].Line(patience); err != nil {
			return fmt.Errorf("clustertest: server %d: %w", i, err)
		}
	}
	js, err := Connect(c.URL())
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const probe = "clustertest"
	if err := CreateStream(ctx, js, jetstream.StreamConfig{Name: probe, Replicas: len(c.servers)}); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) error {
		err := js.DeleteStream(ctx, probe)
		if errors.Is(err, jetstream.ErrStreamNotFound) { // the previous try's answer was late
			return nil
		}
		return err
	})
}

// CreateStream creates or finds a stream. It tries for a minute, since a leader that was
// just elected may not know enough servers for the replicas.
func CreateStream(ctx context.Context, js jetstream.JetStream, c jetstream.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return until(ctx, func(ctx context.Context) error {
		_, err := js.CreateOrUpdateStream(ctx, c)
		return err
	})
}

func until(ctx context.Context, f func(ctx context.Context) error) error {
	for {
		within, cancel := context.WithTimeout(ctx, oneTry)
		err := f(within)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return fmt.Errorf("clustertest: %w: %w", context.Cause(ctx), err)
		}
	}
}

func (c *Cluster) launch(i int) error {
	arg, err := json.Marshal(c.settings[i])
	if err == nil {
		var change []func(*exec.Cmd)
		if c.settings[i].Disk > 0 {
			change = append(change, ownMounts)
		}
		c.servers[i], err = child.Start(name, string(arg), change...)
	}
	if err != nil {
		return fmt.Errorf("clustertest: server %d: %w", i, err)
	}
	return nil
}

// URL returns the addresses of all servers, for nats.Connect.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.settings))
	for i, s := range c.settings {
		urls[i] = "nats://" + s.Cluster.Clients
	}
	return strings.Join(urls, ",")
}

// Connect connects to servers, and reconnects without a limit. Its connection must be
// closed.
func Connect(url string, opts ...nats.Option) (jetstream.JetStream, error) {
	nc, err := nats.Connect(url, append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(retry), nats.RetryOnFailedConnect(true),
	}, opts...)...)
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

// Leader returns the server that leads a stream.
func (c *Cluster) Leader(ctx context.Context, js jetstream.JetStream, stream string) (i int, err error) {
	if len(c.servers) == 1 {
		return 0, nil
	}
	err = until(ctx, func(ctx context.Context) error {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		leader := s.CachedInfo().Cluster.Leader
		for i = range c.settings {
			if c.settings[i].Cluster.Server == leader {
				return nil
			}
		}
		return fmt.Errorf("stream %s lacks a leader", stream)
	})
	return i, err
}

// Synced waits until each server has all of a stream.
func (c *Cluster) Synced(ctx context.Context, js jetstream.JetStream, stream string) error {
	return until(ctx, func(ctx context.Context) error {
		s, err := js.Stream(ctx, stream)
		if err != nil || len(c.servers) == 1 {
			return err
		}
		for _, r := range s.CachedInfo().Cluster.Replicas {
			if !r.Current || r.Offline || r.Lag > 0 {
				return fmt.Errorf("stream %s: server %s is %d messages behind", stream, r.Name, r.Lag)
			}
		}
		return nil
	})
}

// Kill ends a server as kill -9 does.
func (c *Cluster) Kill(i int) error {
	p := c.servers[i]
	c.servers[i] = nil
	if err := p.Kill(); err != nil {
		return fmt.Errorf("clustertest: server %d: %w", i, err)
	}
	return nil
}

// Dir returns the directory of a server.
func (c *Cluster) Dir(i int) string { return c.settings[i].Dir }

// Enlarge replaces a server's disk of [Config.Disks] by the disk of the others, from its
// next start on.
func (c *Cluster) Enlarge(i int) { c.settings[i].Disk = 0 }

// Restart starts a killed server again, with its directory and its addresses. It returns
// when clients can connect, which may be before the server has caught up with the others.
func (c *Cluster) Restart(i int) error {
	if err := c.launch(i); err != nil {
		return err
	}
	if _, err := c.servers[i].Line(patience); err != nil {
		return fmt.Errorf("clustertest: server %d: %w", i, err)
	}
	return nil
}

// Pause stops a server for a while; done is false if the system does not support that.
func (c *Cluster) Pause(i int, d time.Duration) (done bool, err error) { return c.servers[i].Pause(d) }

// Log returns the errors that a server has logged since its start.
func (c *Cluster) Log(i int) string { return c.servers[i].Output() }

// Close kills all servers.
func (c *Cluster) Close() {
	for i, p := range c.servers {
		if p != nil {
			_ = p.Kill() // it may have ended
			c.servers[i] = nil
		}
	}
}
