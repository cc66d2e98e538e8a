// Package workerkill runs workers ([delivery.Run]) of several processes on one store and kills them at random. It is for the tests of
// stores: it runs the test binary again as the workers.
package workerkill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

const (
	envPlace = "WEIR_WORKERKILL" // set for the processes of the workers: the place of the store
	envLong  = "WEIR_LONG"

	workers  = 3
	stuck    = 11                     // the message that the sink never takes
	delay    = 100 * time.Millisecond // of the layer
	lease    = 2 * time.Second
	patience = 30 * time.Second // for anything to happen
)

// Open opens the store at a place.
type Open func(ctx context.Context, place string) (store.Inspector, error)

// order is a message: a number.
type order int

// Idempotent says that an order may be processed twice: the queue of what is done knows it by its id.
func (order) Idempotent() bool { return true }

// 1 % are poison.
func (o order) poison() bool { return o%100 == 7 }

var (
	errBusy   = errors.New("busy")
	errPoison = errors.New("poison")
)

// process is the function of the operator. 20 % fail for a while: some at the first attempt, some in the whole first visit.
func process(ctx context.Context, o order) (order, error) {
	meta, _ := delivery.MetaFromContext(ctx)
	if meta.Visit > 1 && time.Since(meta.LastFailure) < delay {
		fail(fmt.Errorf("law D3: message %d is early: it failed %v ago", o, time.Since(meta.LastFailure)))
	}
	time.Sleep(rand.N(2 * time.Millisecond))
	switch {
	case o.poison():
		return 0, errPoison
	case o%5 == 0 && asyncop.AttemptFromContext(ctx) == 1 && meta.Visit <= 1, o%10 == 0 && meta.Visit <= 1:
		return 0, errBusy
	}
	return o, nil
}

// sink refuses one message.
type sink struct{ *store.Sink[order] }

func (s sink) Put(ctx context.Context, ms []delivery.Message[order]) error {
	if slices.ContainsFunc(ms, func(m delivery.Message[order]) bool { return m.Value == stuck }) {
		return fmt.Errorf("message %d is refused", stuck)
	}
	return s.Sink.Put(ctx, ms)
}

// Child is a worker, if this process was started by [Run]; it does not return then. TestMain calls it first.
func Child(open Open) {
	place := os.Getenv(envPlace)
	if place == "" {
		return
	}
	go func() { // the process ends with the test's
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	s, err := open(ctx, place)
	if err != nil {
		fail(err)
	}
	summary, err := Work(ctx, s)
	stop()
	if err := errors.Join(err, s.Close()); err != nil {
		fail(err)
	}
	fmt.Println(summary)
	os.Exit(0)
}

// fail ends the process: nothing of this can happen.
func fail(err error) {
	fmt.Println("FAILED:", err)
	os.Exit(1)
}

// Work is a worker on a store, until ctx ends.
func Work(ctx context.Context, s store.Store, opts ...delivery.RunOption) (delivery.Summary, error) {
	quiet := slog.New(slog.DiscardHandler)
	options := []store.SourceOption{store.WithLease(lease), store.WithLogger(quiet)}
	l, err := ladder.New(ladder.Config[order]{
		Store: s, Codec: codec.JSON[order](), DeadLetters: "dead", Options: options,
		Layers: []ladder.Layer{{Queue: "again", Delay: delay, Jitter: 0.5}, {Queue: "later", Delay: delay}},
	})
	if err != nil {
		return delivery.Summary{}, err
	}
	source := l.Source(store.NewSource(s, "work", "dead", codec.JSON[order](), options...))
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(process), 10*time.Second, 20+rand.IntN(50),
		strategies.FixedDelay[order](1, time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithFailureSink(l.Take), asyncop.WithLogger(quiet))
	opts = append([]delivery.RunOption{delivery.WithLogger(quiet)}, opts...)
	return delivery.Run(ctx, source, op, sink{store.NewSink(s, "done", codec.JSON[order]())}, opts...)
}

// Config says what [Run] does.
type Config struct {
	Place string
	Open  Open
	// KillServer kills the server of the store and starts it again; nil: there is none. It is called on the goroutine of the test.
	KillServer func()
}

// Fill puts n messages into the store.
func Fill(t *testing.T, s store.Store, n int) {
	t.Helper()
	for i := 0; i < n; i += 1000 {
		var ms []store.Message
		for j := i; j < min(n, i+1000); j++ {
			m, err := store.Encode(codec.JSON[order](), order(j), delivery.Meta{ID: strconv.Itoa(j)})
			require.NoError(t, err)
			ms = append(ms, m)
		}
		require.NoError(t, s.Put(t.Context(), "work", ms...))
	}
}

// Run kills workers while they work: a few times by default, more than a hundred times with WEIR_LONG. In the end each message
// is done once, none was lost or early, the dead letters are the poison, and the message that the sink never takes has held up none
// (laws D1 to D4).
func Run(t *testing.T, c Config) {
	t.Helper()
	n, kills, every := 2000, 6, 3
	if os.Getenv(envLong) != "" {
		n, kills, every = 50_000, 120, 20
	}
	s, err := c.Open(t.Context(), c.Place)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	Fill(t, s, n)
	all := make([]*worker, workers)
	for i := range all {
		all[i] = start(t, c.Place)
	}
	defer func() {
		for _, w := range all {
			w.kill()
		}
	}()
	begun, servers := time.Now(), 0
	for kill := 1; kill <= kills; kill++ {
		progress(t, s, all, func(done int) bool { return done >= kill*n*9/10/kills })
		i := rand.IntN(workers)
		all[i].kill()
		all[i] = start(t, c.Place)
		if c.KillServer != nil && kill%every == 0 {
			c.KillServer()
			servers++
		}
	}
	poison := n / 100
	progress(t, s, all, func(done int) bool { return done == n-poison-1 && count(t, s, "dead") == poison })
	took := time.Since(begun)
	for _, w := range all { // a signal: each drains, and ends by itself
		require.NoError(t, w.cmd.Process.Signal(syscall.SIGTERM))
		select {
		case <-w.ended:
			require.NoError(t, w.err, "%v", &w.output)
		case <-time.After(patience):
			t.Fatalf("a worker does not end: %v", &w.output)
		}
	}
	Check(t, s, n)
	t.Logf("%d messages in %v, %d kills of %d workers and %d of the server; the last workers: %v %v %v",
		n, took.Round(time.Millisecond), kills, workers, servers, &all[0].output, &all[1].output, &all[2].output)
}

// Check looks at what the workers have left.
func Check(t *testing.T, s store.Inspector, n int) {
	t.Helper()
	want := map[string][]string{"again": nil, "later": nil, "work": {strconv.Itoa(stuck)}}
	for i := range n {
		switch {
		case order(i).poison():
			want["dead"] = append(want["dead"], strconv.Itoa(i))
		case i != stuck:
			want["done"] = append(want["done"], strconv.Itoa(i))
		}
	}
	for queue, ids := range want {
		var got []string
		for page := (store.Page{Max: 1000}); ; {
			entries, err := s.List(t.Context(), queue, store.Filter{}, page)
			require.NoError(t, err)
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				got = append(got, e.Meta.ID)
			}
			page.After = entries[len(entries)-1].Position
		}
		slices.Sort(got)
		slices.Sort(ids)
		require.Equal(t, ids, got, queue)
	}
}

// progress waits until enough messages are done.
func progress(t *testing.T, s store.Inspector, all []*worker, enough func(done int) bool) {
	t.Helper()
	done, changed := 0, time.Now()
	for {
		now := count(t, s, "done")
		if enough(now) {
			return
		}
		if now != done {
			done, changed = now, time.Now()
		}
		require.Less(t, time.Since(changed), patience, "no progress: %d are done", done)
		for _, w := range all {
			select {
			case <-w.ended:
				t.Fatalf("a worker has ended: %v: %v", w.err, &w.output)
			default:
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// count counts the messages of a queue. A server that was killed may break a connection of the pool.
func count(t *testing.T, s store.Inspector, queue string) int {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		c, err := s.Count(t.Context(), queue, store.Filter{})
		if err == nil {
			return c.Messages
		}
		require.Less(t, time.Since(begun), patience, "%v", err)
	}
}

// worker is a process.
type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	// Read after ended.
	output bytes.Buffer
	err    error
}

func start(t *testing.T, place string) *worker {
	t.Helper()
	w := &worker{cmd: exec.Command(os.Args[0], "-test.run=^$"), ended: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), envPlace+"="+place)
	w.cmd.Stdout, w.cmd.Stderr = &w.output, &w.output
	var err error
	w.stdin, err = w.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, w.cmd.Start())
	go func() {
		w.err = w.cmd.Wait()
		close(w.ended)
	}()
	return w
}

// kill ends the process as kill -9 does.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	<-w.ended
	_ = w.stdin.Close()
}
