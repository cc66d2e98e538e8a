// Package workerkill tests stores and queues: it runs workers ([delivery.Run]) in
// processes on one engine, and kills them at random, or pauses them for longer than their
// leases. The workers run the test binary again.
package workerkill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/child/workers"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

const (
	name = "worker"

	// Lease is how long a silent worker keeps a message.
	Lease = 2 * time.Second

	first   = work + "-retry-1"
	second  = work + "-retry-2"
	workerN = 3
	work    = "work"
	stuck   = 11 // the message that the sink refuses
	// Dead is the queue of dead letters.
	Dead = work + "-dead"

	delay    = 100 * time.Millisecond
	patience = 2 * time.Minute
)

// Engine is the system that the workers use. Its store has the layers and the dead
// letters.
type Engine interface {
	store.Inspector

	Source(ctx context.Context) (delivery.Source[Order], error) // nil selects the queue "work"
	Sink() delivery.Sink[Order]

	Fill(ctx context.Context, orders []Order) error // adds a message per order, with its number as the id
	Left(ctx context.Context) (ids []string, err error)
	CountFinished(ctx context.Context) (int, error)
	Finished(ctx context.Context) (ids []string, err error)
}

// Open opens the engine at a DSN.
type Open func(ctx context.Context, dsn string) (Engine, error)

// Queues is an engine that is a store, with messages and results in two queues.
type Queues struct{ store.Inspector }

var quiet = slog.New(slog.DiscardHandler)

// Source implements [Engine]. It selects the queue "work".
func (q Queues) Source(context.Context) (delivery.Source[Order], error) { return nil, nil } //nolint:nilnil // see Engine

// Sink implements [Engine].
func (q Queues) Sink() delivery.Sink[Order] {
	return delivery.NewQueue[Order](q.Inspector, "done")
}

// Fill implements [Engine].
func (q Queues) Fill(ctx context.Context, orders []Order) error {
	var ms []store.Message
	for _, o := range orders {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		ms = append(ms, store.Message{Meta: o.Meta(), Payload: payload})
	}
	return q.Put(ctx, work, ms...)
}

// Left implements [Engine].
func (q Queues) Left(ctx context.Context) ([]string, error) { return list(ctx, q, work) }

// CountFinished implements [Engine].
func (q Queues) CountFinished(ctx context.Context) (int, error) {
	c, err := q.Count(ctx, "done", store.Filter{})
	return c.Messages, err
}

// Finished implements [Engine].
func (q Queues) Finished(ctx context.Context) ([]string, error) { return list(ctx, q, "done") }

// list returns the ids of a queue's messages. A lost header is an error.
func list(ctx context.Context, s store.Inspector, queue string) (ids []string, err error) {
	for page := (store.Page{Max: 1000}); ; {
		entries, err := s.List(ctx, queue, store.Filter{}, page)
		if err != nil || len(entries) == 0 {
			return ids, err
		}
		for _, e := range entries {
			for header, value := range later {
				if e.Meta.Headers[header] != value {
					return nil, fmt.Errorf("law W4: message %s in %q has lost the header %s: %v", e.Meta.ID, queue, header, e.Meta.Headers)
				}
			}
			ids = append(ids, e.Meta.ID)
		}
		page.After = entries[len(entries)-1].Position
	}
}

// lapsed returns the dead letters whose leases ended too often, without stuck.
func lapsed(ctx context.Context, s store.Inspector) (ids []string, err error) {
	entries, err := s.List(ctx, Dead, store.Filter{Cause: store.Lapsed}, store.Page{Max: 1000})
	for _, e := range entries {
		if e.Meta.ID != Order(stuck).ID() {
			ids = append(ids, e.Meta.ID)
		}
	}
	return ids, err
}

func unexpected(ctx context.Context, s store.Inspector) (texts []string, err error) {
	entries, err := s.List(ctx, Dead, store.Filter{}, store.Page{Max: 1000})
	for _, e := range entries {
		if e.Cause != store.Permanent {
			texts = append(texts, fmt.Sprintf("%s: %v at visit %d, error %q", e.Meta.ID, e.Cause, e.Meta.Visit, e.Meta.LastError))
		}
	}
	return texts, err
}

// later has data that this version does not know: an unrelated header, a header of weir,
// and a member of the stored history. All must be kept (law W4).
var later = map[string]string{"Others": "1", "Weir-Later": "2", "Weir-Meta-later": `{"is":3}`}

// Order is a numbered message.
type Order int

// ID returns the id of the order's message.
func (o Order) ID() string { return strconv.Itoa(int(o)) }

// Meta returns the initial history of the order's message.
func (o Order) Meta() message.Meta { return message.Meta{ID: o.ID(), Headers: maps.Clone(later)} }

// Idempotent returns true: results are recognised by id.
func (Order) Idempotent() bool { return true }

// 1 % of the orders are poison.
func (o Order) poison() bool { return o%100 == 7 }

var (
	errBusy   = errors.New("busy")
	errPoison = predicates.WithReason(errors.New("poison"), predicates.NewRejection("POISON"))
)

// process is the operator's function. 20 % of the orders fail temporarily: half at the
// first attempt, half during the whole first visit.
func process(ctx context.Context, o Order) (Order, error) {
	meta, _ := message.MetaFromContext(ctx)
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

// sink refuses stuck.
type sink struct{ delivery.Sink[Order] }

func (s sink) PutAll(ctx context.Context, ms []message.Message[Order]) error {
	if slices.ContainsFunc(ms, func(m message.Message[Order]) bool { return m.Value == stuck }) {
		return fmt.Errorf("message %d is refused", stuck)
	}
	return s.Sink.PutAll(ctx, ms)
}

// Child runs a worker, and does not return, if [Run], [RunInOrder] or [RunByKey]
// started this process. TestMain must call it first.
func Child(open Open) {
	workers.Child(name, open, func(ctx context.Context, e Engine) error {
		summary, err := Work(ctx, e)
		fmt.Println(summary)
		return errors.Join(err, e.Close())
	})
	workers.Child(inOrder, open, func(ctx context.Context, e Engine) error {
		return errors.Join(workInOrder(ctx, e), e.Close())
	})
	workers.Child(byKey, open, func(ctx context.Context, e Engine) error {
		return errors.Join(workByKey(ctx, e), e.Close())
	})
}

func fail(err error) {
	fmt.Println("FAILED:", err)
	os.Exit(1)
}

// Work runs a worker until ctx ends.
func Work(ctx context.Context, e Engine, opts ...delivery.RunOption) (delivery.Summary, error) {
	q := delivery.NewQueue[Order](e, work, delivery.WithLayers(delivery.Layer{Delay: delay, Jitter: 0.5}, delivery.Layer{Delay: delay}), delivery.WithLease(Lease), delivery.WithLogger(quiet))
	source, err := child.Again(ctx, e.Source)
	if ctx.Err() != nil {
		return delivery.Summary{}, nil //nolint:nilerr // ended before it began
	}
	if err != nil {
		return delivery.Summary{}, err
	}
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(process), 10*time.Second, 20+rand.IntN(50),
		strategies.FixedDelay[Order](1, time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
	// stuck delays a worker for the whole drain.
	opts = append([]delivery.RunOption{delivery.WithLogger(quiet), delivery.WithDrain(3 * time.Second)}, opts...)
	return delivery.Run(ctx, q.Source(source), op, sink{e.Sink()}, opts...)
}

// Config configures [Run].
type Config struct {
	DSN  string
	Open Open
	// KillServer, if not nil, kills and restarts a server, or harms it otherwise, on the
	// test's goroutine.
	KillServer func()
	// MayLapse allows messages to become dead letters because their leases ended too
	// often (law W2), for harm that ends leases of live workers. KillServer implies it: a
	// worker cannot renew leases while the server is down.
	MayLapse bool
	// MayDouble allows messages to be done, or to become dead letters, twice. Versions
	// before law W5 and this version do not recognise each other's hand-overs: a message
	// that one version was handing over when it was killed, and that the other repeats,
	// is there twice.
	MayDouble bool
	// Messages is the number of messages in CI. 0 means 2,000.
	Messages int
	// Programs are the programs that the workers run in turn, such as the tests of an
	// older version: see [Older]. The default is the current program.
	Programs []string
}

// Older builds the tests of the package in dir at a commit, and returns the program. It
// needs git and the history.
func Older(t *testing.T, commit, dir string) string {
	t.Helper()
	if os.Getenv("CI") == "" && !suite.Long() {
		t.Skip("builds an older version, which takes a minute: with CI=true or WEIR_LONG=1")
	}
	index := "GIT_INDEX_FILE=" + filepath.Join(t.TempDir(), "index") // the repository's index has a lock, and tests run in parallel
	run := func(dir, name string, args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir, c.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath -vet=off", index)
		out, err := c.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	root, err := run(".", "git", "rev-parse", "--show-toplevel")
	if err == nil {
		_, err = run(root, "git", "cat-file", "-e", commit+"^{commit}")
	}
	if err != nil {
		t.Skipf("the history has no commit %s: clone it whole", commit)
	}
	source, program := t.TempDir(), filepath.Join(t.TempDir(), "older.test")
	out, err := run(root, "git", "--work-tree", source, "restore", "--source", commit, "--worktree", "--", ".")
	require.NoError(t, err, out)
	out, err = run(filepath.Join(source, dir), "go", "test", "-c", "-o", program, ".")
	require.NoError(t, err, out)
	return program
}

// Fill puts n messages into the engine.
func Fill(t *testing.T, e Engine, n int) {
	t.Helper()
	for i := 0; i < n; i += 1000 {
		var orders []Order
		for j := i; j < min(n, i+1000); j++ {
			orders = append(orders, Order(j))
		}
		require.NoError(t, e.Fill(t.Context(), orders))
	}
}

// length is how long a test with kills is.
type length struct {
	messages, kills int
	pauseAt         int // number of the kill, in every ten, that is a pause instead
	serverEach      int // kills of workers between kills of servers
}

func (c Config) length() length {
	switch {
	case suite.Long():
		return length{messages: 50_000, kills: 120, pauseAt: 5, serverEach: 10}
	case suite.Full():
		return length{messages: cmp.Or(c.Messages, 2000), kills: 6, pauseAt: 5, serverEach: 6}
	}
	return length{messages: 600, kills: 3, pauseAt: 2, serverEach: 3}
}

// Run kills workers while they work, and pauses them for longer than their leases: three
// times by default, six times in CI, 120 times with WEIR_LONG=1. In the end each message
// was done once, every message is there, retries were not early, the dead letters are the
// poison, and stuck has not blocked others (laws D1 to D4).
func Run(t *testing.T, c Config) {
	t.Helper()
	long := c.length()
	n := long.messages
	e, err := c.Open(t.Context(), c.DSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	Fill(t, e, n)
	all := workers.Start(t, name, c.DSN, workerN, patience, c.Programs...)
	begun, servers := time.Now(), 0
	for kill := 1; kill <= long.kills; kill++ {
		progress(t, e, all, func(done int) bool { return done >= kill*n*9/10/long.kills })
		if kill%10 == long.pauseAt {
			all.Stop(Lease + Lease/2)
		} else {
			all.Kill()
		}
		if c.KillServer != nil && kill%long.serverEach == 0 {
			c.KillServer()
			servers++
		}
	}
	poison := n / 100
	lapses := func() []string {
		if !c.MayLapse && c.KillServer == nil {
			return nil
		}
		return patiently(t, func(ctx context.Context) ([]string, error) { return lapsed(ctx, e) })
	}
	settled := func(done int) bool {
		// A killed worker's messages are redelivered after their leases end, even if they
		// were done. Then they take the same path again.
		return done >= n-poison-1-len(lapses()) && count(t, e, Dead) >= poison &&
			len(patiently(t, e.Left)) <= 1 && count(t, e, first) == 0 && count(t, e, second) == 0
	}
	progress(t, e, all, settled)
	took := time.Since(begun)
	all.End() // each drains first
	// A paused worker may later hand over messages that others have done (law D1). New
	// workers process those again.
	if !settled(patiently(t, e.CountFinished)) {
		late := workers.Start(t, name, c.DSN, workerN, patience, c.Programs...)
		progress(t, e, late, settled)
		late.End()
	}
	gone := lapses()
	require.LessOrEqual(t, len(gone), n/20, "messages whose leases ended too often")
	check(t, e, n, c.MayDouble, gone...)
	t.Logf("%d messages in %v, %d kills and %d stops of %d workers, %d kills of servers; the last workers: %v",
		n, took.Round(time.Millisecond), all.Kills, all.Stops, workerN, servers, all.Output())
}

// Check checks the workers' result. Messages in lapsed are dead letters, and may also
// have been done.
func Check(t *testing.T, e Engine, n int, lapsed ...string) {
	t.Helper()
	check(t, e, n, false, lapsed...)
}

func check(t *testing.T, e Engine, n int, mayDouble bool, lapsed ...string) {
	t.Helper()
	dead, done := slices.Clone(lapsed), []string(nil)
	both := patiently(t, e.Finished)
	for i := range n {
		switch {
		case Order(i).poison():
			dead = append(dead, Order(i).ID())
		case i != stuck && (!slices.Contains(lapsed, Order(i).ID()) || slices.Contains(both, Order(i).ID())):
			done = append(done, Order(i).ID())
		}
	}
	check := func(what string, want []string, get func(ctx context.Context) ([]string, error)) {
		got := patiently(t, get)
		slices.Sort(got)
		slices.Sort(want)
		if mayDouble {
			all := len(got)
			got = slices.Compact(got)
			t.Logf("%s: %d of %d are there twice", what, all-len(got), len(got))
			require.Less(t, all-len(got), 1+len(got)/5, "%s: more than kills explain", what)
		}
		if !slices.Equal(want, got) {
			t.Logf("dead letters that are not poison: %v", patiently(t, func(ctx context.Context) ([]string, error) { return unexpected(ctx, e) }))
		}
		require.Equal(t, want, got, what)
	}
	queue := func(name string) func(ctx context.Context) ([]string, error) {
		return func(ctx context.Context) ([]string, error) { return list(ctx, e, name) }
	}
	check("done", done, e.Finished)
	// stuck is waiting, or it is a dead letter because its workers were killed too often
	// (law W2).
	left := []string{Order(stuck).ID()}
	if slices.Contains(patiently(t, queue(Dead)), left[0]) {
		dead, left = append(dead, left[0]), nil
	}
	check("left", left, e.Left)
	check("dead", dead, queue(Dead))
	check(first, nil, queue(first))
	check(second, nil, queue(second))
}

func progress(t *testing.T, e Engine, all *workers.Workers, enough func(done int) bool) {
	t.Helper()
	done, changed := 0, time.Now()
	for {
		now := patiently(t, e.CountFinished)
		if enough(now) {
			return
		}
		if now != done {
			done, changed = now, time.Now()
		}
		require.Less(t, time.Since(changed), patience, "no progress: %d are done", done)
		all.MustRun()
		time.Sleep(20 * time.Millisecond)
	}
}

func count(t *testing.T, s store.Inspector, queue string) int {
	t.Helper()
	return patiently(t, func(ctx context.Context) (int, error) {
		c, err := s.Count(ctx, queue, store.Filter{})
		return c.Messages, err
	})
}

// patiently repeats f until it succeeds: a killed server may not answer.
func patiently[T any](t *testing.T, f func(ctx context.Context) (T, error)) T {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		v, err := f(t.Context())
		if err == nil {
			return v
		}
		require.Less(t, time.Since(begun), patience, "%v", err)
	}
}
