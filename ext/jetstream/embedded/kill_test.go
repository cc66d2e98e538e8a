package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/ext/jetstream/jsqueue"
	"github.com/weirflow/weir/ext/jetstream/jsstore"
)

// The tests with kills run servers and workers in processes of their own: this test binary, with a role.
const (
	envRole = "WEIR_JETSTREAM_ROLE"
	envPort = "WEIR_JETSTREAM_PORT"
	envDir  = "WEIR_JETSTREAM_DIR"
)

// The tests that take long and do not measure time run beside each other.
func TestMain(m *testing.M) {
	roles := map[string]func() error{"server": serve, "worker": work, "pipeline": pipeline}
	if role := roles[os.Getenv(envRole)]; role != nil {
		if err := role(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// long says that the long form of tests is to run.
func long() bool { return os.Getenv("WEIR_LONG") != "" }

// process is a child.
type process struct {
	cmd   *exec.Cmd
	ended chan error
}

// begin starts a child, and returns when it has printed a line, if it is a server.
func begin(t *testing.T, role, port, dir string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, envPort+"="+port, envDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe() // a child ends with this process
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	if role == "server" {
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
	}
	p := &process{cmd, make(chan error, 1)}
	go func() {
		p.ended <- cmd.Wait()
		_ = in.Close()
	}()
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = <-p.ended // that it was killed
}

// orphaned returns when the parent has ended.
func orphaned() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(3)
}

func serve() error {
	port, err := strconv.Atoi(os.Getenv(envPort))
	if err != nil {
		return err
	}
	_, err = embedded.Start(os.Getenv(envDir), embedded.WithLogger(quiet()), embedded.WithServerOptions(func(o *server.Options) {
		o.DontListen, o.Host, o.Port = false, "127.0.0.1", port
	}))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	orphaned()
	return nil
}

// dial connects to the server of a port, now and whenever it comes back.
func dial(port string) (jetstream.JetStream, error) {
	nc, err := nats.Connect("nats://127.0.0.1:"+port, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

// again calls f until it succeeds: the server may be down.
func again[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err == nil || ctx.Err() != nil {
			return v, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// work takes jobs until it is killed. A tenth of the visits fail, and one job of twenty never succeeds.
func work() error {
	go orphaned()
	ctx := context.Background()
	js, err := dial(os.Getenv(envPort))
	if err != nil {
		return err
	}
	dead, err := again(ctx, func() (*jsstore.Store, error) { return jsstore.Open(ctx, js, "dead") })
	if err != nil {
		return err
	}
	source, err := again(ctx, func() (*jsqueue.Source[int], error) {
		c, err := js.Consumer(ctx, "jobs", "workers")
		if err != nil {
			return nil, err
		}
		return jsqueue.NewSource(ctx, js, c, codec.JSON[int](), jsqueue.WithDeadLetters(dead, "dead"), jsqueue.WithLogger(quiet()))
	})
	if err != nil {
		return err
	}
	sink := jsqueue.NewSink(js, "done", codec.JSON[int](), jsqueue.WithConfirmWithin(2*time.Second))
	for {
		ms, err := source.Receive(ctx, 5)
		if err != nil {
			continue // verdicts that were not confirmed, since the server is down
		}
		var done []delivery.Message[int]
		for _, m := range ms {
			switch {
			case m.Value%20 == 0:
				m.Reject(errors.New("poison"))
			case rand.IntN(10) == 0:
				m.Nack(time.Duration(rand.IntN(50)) * time.Millisecond)
			default:
				done = append(done, m)
			}
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		err = sink.Put(ctx, done)
		for _, m := range done {
			if err == nil {
				m.Ack()
			} else {
				m.Nack(0)
			}
		}
	}
}

// Each job is done once, or is a dead letter once, whoever is killed (laws D1, D2).
func TestKilledWorkersAndServers(t *testing.T) {
	t.Parallel()
	jobs, kills := 1000, 12
	if long() {
		jobs, kills = 20_000, 120
	}
	port, dir := freePort(t), t.TempDir()
	srv := begin(t, "server", port, dir)
	defer func() { srv.kill() }()
	js, err := dial(port)
	require.NoError(t, err)
	defer js.Conn().Close()
	for _, name := range []string{"jobs", "done"} {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, Duplicates: time.Hour})
		require.NoError(t, err)
	}
	_, err = js.CreateStream(t.Context(), jsstore.StreamConfig("dead"))
	require.NoError(t, err)
	_, err = js.CreateConsumer(t.Context(), "jobs", jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second,
	})
	require.NoError(t, err)
	ms := make([]delivery.Message[int], jobs)
	for i := range ms {
		ms[i] = delivery.New(i, nil, nil)
	}
	require.NoError(t, jsqueue.NewSink(js, "jobs", codec.JSON[int]()).Put(t.Context(), ms))

	workers := make([]*process, 3)
	for i := range workers {
		workers[i] = begin(t, "worker", port, dir)
	}
	defer func() {
		for _, w := range workers {
			w.kill()
		}
	}()
	random := rand.New(rand.NewPCG(1, 2))
	for n := range kills {
		time.Sleep(time.Duration(50+random.IntN(100)) * time.Millisecond)
		if n%4 == 3 {
			srv.kill()
			srv = begin(t, "server", port, dir)
			continue
		}
		i := random.IntN(len(workers))
		workers[i].kill()
		workers[i] = begin(t, "worker", port, dir)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		info, err := again(ctx, func() (*jetstream.ConsumerInfo, error) {
			c, err := js.Consumer(ctx, "jobs", "workers")
			if err != nil {
				return nil, err
			}
			return c.CachedInfo(), nil
		})
		require.NoError(t, err)
		if info.NumPending == 0 && info.NumAckPending == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	counted := map[int]int{}
	in := jscheckpoint.NewInput(js, "done", codec.JSON[int](), jscheckpoint.WithEnd())
	defer in.Close()
	for v, err := in.Next(); err == nil; v, err = in.Next() {
		counted[v]++
	}
	dead, err := jsstore.Open(t.Context(), js, "dead")
	require.NoError(t, err)
	defer dead.Close()
	es, err := dead.List(t.Context(), "dead", store.Filter{}, store.Page{Max: jobs})
	require.NoError(t, err)
	for _, e := range es {
		v, err := strconv.Atoi(string(e.Payload))
		require.NoError(t, err)
		require.Zero(t, v%20)
		counted[v]++
	}
	for i := range jobs {
		require.Equal(t, 1, counted[i], "job %d", i)
	}
}

// pipeline copies a stream to another one, with checkpoints, until it is done or killed.
func pipeline() error {
	go orphaned()
	js, err := dial(os.Getenv(envPort))
	if err != nil {
		return err
	}
	// A failure ends a run; its process would be started again. Here a loop does that, so that only kills end the process.
	for {
		err := copyOnce(js)
		if err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func copyOnce(js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kept, err := jscheckpoint.Open(ctx, js, "checkpoints", "copy")
	if err != nil {
		return err
	}
	defer kept.Close()
	c, err := checkpoint.NewCoordinator(kept, checkpoint.WithInterval(20*time.Millisecond), checkpoint.WithLogger(quiet()))
	if err != nil {
		return err
	}
	defer c.Close()
	double := asyncop.Blocking(func(_ context.Context, v int) (int, error) {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		return 2 * v, nil
	})
	source := checkpoint.NewSource(c, "in", checkpoint.Input[int](jscheckpoint.NewInput(js, "in", codec.JSON[int](), jscheckpoint.WithEnd())))
	op := asyncop.OrderedWait(double, 10*time.Second, 20, asyncop.WithName("double"), asyncop.WithCheckpoints(c), asyncop.WithLogger(quiet()))
	sink := checkpoint.NewSink(c, "out", checkpoint.Output[int](jscheckpoint.NewOutput(js, "out", "out", codec.JSON[int]())))
	if err := c.Start(); err != nil {
		return err
	}
	source.Via(op).To(sink)
	return c.Wait()
}

// The output is exactly once and in order, whoever is killed (laws C1, P1).
func TestKilledPipelines(t *testing.T) {
	t.Parallel()
	elements, kills := 2000, 10
	if long() {
		elements, kills = 50_000, 100
	}
	port, dir := freePort(t), t.TempDir()
	srv := begin(t, "server", port, dir)
	defer func() { srv.kill() }()
	js, err := dial(port)
	require.NoError(t, err)
	defer js.Conn().Close()
	for _, name := range []string{"in", "out"} {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
		require.NoError(t, err)
	}
	_, err = js.CreateStream(t.Context(), jscheckpoint.StreamConfig("checkpoints"))
	require.NoError(t, err)
	ms := make([]delivery.Message[int], elements)
	var want []string
	for i := range ms {
		ms[i] = delivery.New(i, nil, nil)
		want = append(want, strconv.Itoa(2*i))
	}
	require.NoError(t, jsqueue.NewSink(js, "in", codec.JSON[int]()).Put(t.Context(), ms))

	random := rand.New(rand.NewPCG(3, 4))
	p := begin(t, "pipeline", port, dir)
	defer func() { p.kill() }()
	for n := 0; ; n++ {
		if n < kills {
			select {
			case err := <-p.ended:
				p.ended <- err
				n = kills
			case <-time.After(time.Duration(100+random.IntN(200)) * time.Millisecond):
				if n%4 == 3 {
					srv.kill()
					srv = begin(t, "server", port, dir)
					continue
				}
				p.kill()
				p = begin(t, "pipeline", port, dir)
				continue
			}
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			require.NoError(t, err)
		case <-time.After(5 * time.Minute):
			require.Fail(t, "the pipeline does not end")
		}
		break
	}
	var got []string
	in := jscheckpoint.NewInput(js, "out", codec.JSON[int](), jscheckpoint.WithEnd())
	defer in.Close()
	for v, err := in.Next(); err == nil; v, err = in.Next() {
		got = append(got, strconv.Itoa(v))
	}
	require.Empty(t, firstDifference(got, want))
}

func firstDifference(got, want []string) string {
	if slices.Equal(got, want) {
		return ""
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("element %d is %s, want %s; around it: %s", i, got[i], want[i], strings.Join(got[max(0, i-3):min(len(got), i+4)], " "))
		}
	}
	return fmt.Sprintf("%d elements, want %d", len(got), len(want))
}
