// Package clustertest runs brokers of Apache Kafka in separate processes on loopback, for
// tests and benchmarks that kill them. It needs Java 17 and the jars of Apache Kafka 4,
// whose directory is in the environment variable WEIR_KAFKA.
//
//	cluster, err := clustertest.Start(3)
//	defer cluster.Close()
//	…
//	engine, err := kafka.Open(ctx, cluster.URL())
//	…
//	cluster[0].Kill()
//	…
//	err = cluster[0].Restart()
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 5 * time.Minute

// Libs returns the directory of Kafka's jars, or "" if it is not set: then [Start]
// returns an error.
func Libs() string { return os.Getenv("WEIR_KAFKA") }

// Cluster is the brokers of a cluster. It is not safe for concurrent use.
type Cluster []*Broker

// Broker is a process of Apache Kafka, both broker and controller.
type Broker struct {
	Addr string // of clients
	// Login is the address of the listener LOGIN. A setting
	// (listener.security.protocol.map) may make it ask for a password.
	Login string
	Dir   string // directory of its files; data is in "data" there

	id      int
	quiet   string // of controllers
	process *os.Process
	ended   chan struct{} // closed by the end of the process; nil if it is not running
}

// Start starts brokers, and returns when all answer. settings are lines of
// server.properties. By default topics have up to three replicas, a majority of them in
// sync (min.insync.replicas). The cluster must be closed.
func Start(brokers int, settings ...string) (all Cluster, err error) {
	defer func() {
		if err != nil {
			all.Close()
		}
	}()
	dir, err := os.MkdirTemp("", "weir-kafka-")
	if err != nil {
		return nil, err
	}
	var voters []string
	for id := 1; id <= brokers; id++ {
		b := &Broker{id: id, Dir: filepath.Join(dir, fmt.Sprint(id)), Addr: freeAddr(), Login: freeAddr(), quiet: freeAddr()}
		all = append(all, b)
		voters = append(voters, fmt.Sprintf("%d@%s", id, b.quiet))
	}
	settings = append(settings, "controller.quorum.voters="+strings.Join(voters, ","))
	for _, b := range all {
		err = errors.Join(err, b.format(settings, min(brokers, 3)))
	}
	for _, b := range all {
		if err == nil {
			err = b.launch()
		}
	}
	for _, b := range all {
		if err == nil {
			err = b.await()
		}
	}
	return all, err
}

// Close kills all brokers and removes their files.
func (all Cluster) Close() {
	for _, b := range all {
		b.Kill()
	}
	if len(all) > 0 {
		_ = os.RemoveAll(filepath.Dir(all[0].Dir))
	}
}

// Addrs returns the addresses of the brokers.
func (all Cluster) Addrs() (addrs []string) {
	for _, b := range all {
		addrs = append(addrs, b.Addr)
	}
	return addrs
}

// URL returns an address for kafka.Open.
func (all Cluster) URL() string { return "kafka://" + strings.Join(all.Addrs(), ",") }

// freeAddr returns a free address that a broker can use later, and again after a restart:
// ports below 32768, unlike the ports of net.Listen, are not given to connections.
func freeAddr() string {
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000)))
		if err == nil {
			_ = l.Close()
			return l.Addr().String()
		}
	}
}

func (b *Broker) settings() string { return filepath.Join(b.Dir, "server.properties") }
func (b *Broker) log() string      { return filepath.Join(b.Dir, "log") }

// format writes the settings and lays out the directory. Sessions may be short, so that
// tests do not wait long.
func (b *Broker) format(more []string, replicas int) error {
	if err := os.MkdirAll(b.Dir, 0o750); err != nil {
		return err
	}
	text := fmt.Sprintf(`process.roles=broker,controller
node.id=%d
listeners=PLAINTEXT://%s,LOGIN://%s,CONTROLLER://%s
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=%s
auto.create.topics.enable=false
default.replication.factor=%d
min.insync.replicas=%d
offsets.topic.num.partitions=3
offsets.topic.replication.factor=%[6]d
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=%[6]d
transaction.state.log.min.isr=%[7]d
share.coordinator.state.topic.replication.factor=%[6]d
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=100
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=2000
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=200
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.backoff.ms=100
log.retention.check.interval.ms=200
log.initial.task.delay.ms=100
log.segment.delete.delay.ms=1000
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
`, b.id, b.Addr, b.Login, b.quiet, filepath.Join(b.Dir, "data"), replicas, (replicas+1)/2)
	text += strings.Join(more, "\n") + "\n"
	if err := os.WriteFile(b.settings(), []byte(text), 0o600); err != nil {
		return err
	}
	out, err := java("kafka.tools.StorageTool", "format", "-t", "d2VpcnRlc3RzMTIzNDU2Nw", "-c", b.settings()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("formatting: %w: %s", err, out)
	}
	return nil
}

func java(class string, args ...string) *exec.Cmd {
	args = append([]string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(Libs(), "*"), class}, args...)
	cmd := exec.Command("java", args...)
	endWithUs(cmd)
	return cmd
}

func (b *Broker) launch() error {
	log, err := os.OpenFile(b.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the broker has its own
	cmd := java("kafka.Kafka", b.settings())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	b.process, b.ended = cmd.Process, ended
	go func() { // ends with the process
		defer close(ended)
		_ = cmd.Wait() // by a signal, as a rule
	}()
	return nil
}

func (b *Broker) await() error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		all, err := kadm.NewClient(client).ListBrokers(ctx)
		for _, known := range all {
			if err == nil && int(known.NodeID) == b.id {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-b.ended:
			text, _ := os.ReadFile(b.log())
			return fmt.Errorf("broker %d has ended: %s", b.id, text)
		case <-ctx.Done():
			return fmt.Errorf("broker %d does not answer: %w", b.id, err)
		}
	}
}

// Kill ends the broker as kill -9 does, unless it has ended already.
func (b *Broker) Kill() { b.end(os.Kill) }

// Shutdown ends the broker in order: it hands over its partitions and groups.
func (b *Broker) Shutdown() { b.end(syscall.SIGTERM) }

func (b *Broker) end(s os.Signal) {
	if b.ended != nil {
		_ = b.process.Signal(s)
		<-b.ended
		b.ended = nil
	}
}

// Signal sends a signal, such as SIGSTOP, to a running broker.
func (b *Broker) Signal(s os.Signal) error { return b.process.Signal(s) }

// Ended returns a channel that is closed when the process ends, for any reason. The
// broker must be running.
func (b *Broker) Ended() <-chan struct{} { return b.ended }

// Restart starts a broker that has ended, and returns when it answers.
func (b *Broker) Restart() error {
	b.Kill()
	if err := b.launch(); err != nil {
		return err
	}
	return b.await()
}
