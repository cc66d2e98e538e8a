package kafka

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// libs returns the directory of the jars of Apache Kafka: the tests run on real brokers then. "" means that they run on kfake.
func libs() string { return os.Getenv("WEIR_KAFKA") }

// broker is a process of Apache Kafka, a broker and a controller of a cluster. It belongs to the goroutine of its test.
type broker struct {
	id    int
	dir   string
	addr  string // of clients
	quiet string // of controllers

	process *os.Process
	ended   chan struct{} // closed by the end of the process; nil: it is not running
}

// brokers are a cluster.
type brokers []*broker

// startBrokers starts a cluster of n brokers. Whoever calls it ends them. Further settings are lines of server.properties.
func startBrokers(n int, settings ...string) (all brokers, err error) {
	dir, err := os.MkdirTemp("", "weir-kafka-")
	if err != nil {
		return nil, err
	}
	var voters []string
	for id := 1; id <= n; id++ {
		b := &broker{id: id, dir: filepath.Join(dir, fmt.Sprint(id)), addr: freeAddr(), quiet: freeAddr()}
		all = append(all, b)
		voters = append(voters, fmt.Sprintf("%d@%s", id, b.quiet))
	}
	for _, b := range all {
		if err := b.format(append(settings, "controller.quorum.voters="+strings.Join(voters, ",")), min(n, 3)); err != nil {
			return all, err
		}
	}
	for _, b := range all {
		if err := b.launch(); err != nil {
			return all, err
		}
	}
	for _, b := range all {
		if err := b.awaitAnswer(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// end ends all brokers and removes their files.
func (all brokers) end() {
	for _, b := range all {
		b.kill()
	}
	if len(all) > 0 {
		_ = os.RemoveAll(filepath.Dir(all[0].dir))
	}
}

func (all brokers) addrs() (addrs []string) {
	for _, b := range all {
		addrs = append(addrs, b.addr)
	}
	return addrs
}

func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (b *broker) settings() string { return filepath.Join(b.dir, "server.properties") }
func (b *broker) log() string      { return filepath.Join(b.dir, "log") }

// format writes the settings and lays out the directory of a broker. Sessions may be short, and what a test waits for comes soon.
func (b *broker) format(more []string, replicas int) error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(`process.roles=broker,controller
node.id=%d
listeners=PLAINTEXT://%s,CONTROLLER://%s
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=%s
auto.create.topics.enable=false
default.replication.factor=%d
min.insync.replicas=%d
offsets.topic.num.partitions=3
offsets.topic.replication.factor=%[5]d
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=%[5]d
transaction.state.log.min.isr=%[6]d
share.coordinator.state.topic.replication.factor=%[5]d
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
`, b.id, b.addr, b.quiet, filepath.Join(b.dir, "data"), replicas, (replicas+1)/2)
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

// java returns a command that ends with this process.
func java(class string, args ...string) *exec.Cmd {
	args = append([]string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(libs(), "*"), class}, args...)
	cmd := exec.Command("java", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// launch starts a broker that is not running.
func (b *broker) launch() error {
	log, err := os.OpenFile(b.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := java("kafka.Kafka", b.settings())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	b.process, b.ended = cmd.Process, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // by a signal, as a rule
	}()
	return nil
}

// awaitAnswer returns when the broker is a part of its cluster.
func (b *broker) awaitAnswer() error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
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

// kill ends the broker as kill -9 does.
func (b *broker) kill() {
	if b.ended != nil {
		_ = b.process.Kill() // it may have ended by itself
		<-b.ended
		b.ended = nil
	}
}

// shutdown ends the broker in order: it gives its partitions and groups away.
func (b *broker) shutdown() {
	if b.ended != nil {
		_ = b.process.Signal(syscall.SIGTERM)
		<-b.ended
		b.ended = nil
	}
}

// restart starts a broker that was ended and waits until it answers.
func (b *broker) restart(t testing.TB) {
	t.Helper()
	require.NoError(t, b.launch())
	require.NoError(t, b.awaitAnswer())
}

// shared is the broker of tests that do no harm to it. They run one after the other.
var shared = sync.OnceValues(func() (brokers, error) { return startBrokers(1) })

var sharedIsUsed bool

// realBroker returns the address of a broker without topics and groups.
func realBroker(t testing.TB) []string {
	t.Helper()
	sharedIsUsed = true
	all, err := shared()
	require.NoError(t, err)
	wipe(t, all.addrs())
	return all.addrs()
}

// endRealBroker ends it, if there is one.
func endRealBroker() {
	if sharedIsUsed {
		all, _ := shared()
		all.end()
	}
}

// ownBrokers starts a cluster for one test.
func ownBrokers(t testing.TB, n int, settings ...string) brokers {
	t.Helper()
	if libs() == "" {
		t.Skip("skipped, this test needs Apache Kafka: WEIR_KAFKA")
	}
	all, err := startBrokers(n, settings...)
	t.Cleanup(all.end)
	require.NoError(t, err)
	return all
}

// wipe removes all topics and groups. A group whose members were dropped is removed after their sessions.
func wipe(t testing.TB, addrs []string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	eventually(t, func() bool {
		groups, err := admin.ListGroups(t.Context())
		if err == nil && len(groups) > 0 {
			_, err = admin.DeleteGroups(t.Context(), groups.Groups()...)
		}
		return err == nil && len(groups) == 0
	}, "groups are removed")
	topics, err := admin.ListTopics(t.Context())
	require.NoError(t, err)
	if names := topics.Names(); len(names) > 0 {
		deleted, err := admin.DeleteTopics(t.Context(), names...)
		require.NoError(t, err)
		require.NoError(t, deleted.Error())
	}
}
