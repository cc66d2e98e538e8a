package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
)

var errTest = errors.New("broken on purpose")

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// fake is a participant that records the calls of its methods. It reports a barrier at
// once, unless mute.
type fake struct {
	name  string
	mute  bool
	fails error

	onPending, onCompleted func() // called at the end of the method, unless nil

	mu    sync.Mutex
	calls []string            // guarded by mu
	last  participant.Barrier // guarded by mu
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fake) Pending(b participant.Barrier) {
	f.note("p%d", b.ID)
	f.mu.Lock()
	f.last = b
	f.mu.Unlock()
	if !f.mute {
		b.Report(f.name, participant.State{[]byte(f.name)}, f.fails)
		b.Report(f.name, nil, errTest) // a second report is ignored
	}
	if f.onPending != nil {
		f.onPending()
	}
}

func (f *fake) Completed(id uint64) {
	f.note("c%d", id)
	if f.onCompleted != nil {
		f.onCompleted()
	}
}
func (f *fake) Aborted(id uint64, _ error) { f.note("a%d", id) }
func (f *fake) history() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.calls, " ")
}

func (f *fake) barrier() participant.Barrier {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// badStore fails to save while fail is set.
type badStore struct {
	*checkpointtest.MemoryStore
	fail bool
	gate chan struct{} // if not nil, Save receives from it first
}

func (s *badStore) Save(ctx context.Context, snap *Snapshot) error {
	if s.gate != nil {
		<-s.gate
	}
	if s.fail {
		return errTest
	}
	return s.MemoryStore.Save(ctx, snap)
}

// slowHandler receives from gate for every line.
type slowHandler struct {
	slog.Handler
	gate chan struct{}
}

func (*slowHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *slowHandler) Handle(context.Context, slog.Record) error {
	<-h.gate
	return nil
}

func startWith(t *testing.T, store Store, opts []Option, fakes ...*fake) *Coordinator {
	t.Helper()
	c, err := NewCoordinator(store, append([]Option{WithLogger(quiet())}, opts...)...)
	require.NoError(t, err)
	for _, f := range fakes {
		c.Host().Register(f.name, f)
	}
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func bubble(t *testing.T, name string, body func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, body) })
}

func TestCoordinator(t *testing.T) {
	ctx := context.Background()
	bubble(t, "completes and resumes", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		a, b := &fake{name: "a"}, &fake{name: "b"}
		c := startWith(t, store, nil, a, b)
		for want := range uint64(2) {
			require.Equal(t, want+1, must(c.Trigger(ctx)))
		}
		require.Equal(t, "p1 c1 p2 c2", a.history())
		require.Equal(t, a.history(), b.history())
		_, resumes := c.Restored()
		require.False(t, resumes)

		c = must(NewCoordinator(store.Reopen()))
		state, ok := c.Host().Register("b", b)
		require.True(t, ok)
		require.Equal(t, "b", string(state.Bytes()))
		c.Host().Register("a", a)
		require.NoError(t, c.Start())
		id, _ := c.Restored()
		require.EqualValues(t, 2, id)
		require.EqualValues(t, 3, must(c.Trigger(ctx)), "numbers go on")
		require.NoError(t, c.Close())
		require.NoError(t, c.Close(), "a second time")
		require.ErrorIs(t, c.Wait(), ErrClosed)
		_, err := c.Trigger(ctx)
		require.ErrorIs(t, err, ErrClosed)
	})
	bubble(t, "kind and number of what is stored", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		a := &fake{name: "a"}
		c := startWith(t, store, nil, a)
		_, resumes := c.RestoredKind()
		require.False(t, resumes)
		require.Zero(t, c.LastComplete())
		for i, kind := range []Kind{Periodic, Suspend, Drain} {
			want := i + 1
			if kind == Drain {
				want++ // after the marker
			}
			if kind == Periodic {
				must(c.Trigger(ctx))
			} else {
				require.NoError(t, c.Finish(ctx, kind))
			}
			require.EqualValues(t, want, c.LastComplete())
			store = store.Reopen()
			c = startWith(t, store, nil, a)
			restored, resumes := c.RestoredKind()
			require.True(t, resumes)
			require.Equal(t, kind, restored)
			require.EqualValues(t, want, c.LastComplete(), "a restart would resume from it")
		}
		a.fails = errTest
		_, err := c.Trigger(ctx)
		require.Error(t, err)
		require.EqualValues(t, 4, c.LastComplete())
	})
	bubble(t, "interval", func(t *testing.T) {
		mock := clock.NewMock()
		a := &fake{name: "a"}
		startWith(t, checkpointtest.NewMemoryStore(), []Option{WithClock(mock), WithInterval(time.Second)}, a)
		for _, want := range []string{"", "p1 c1", "p1 c1", "p1 c1 p2 c2"} {
			require.Equal(t, want, a.history())
			mock.Add(time.Second / 2)
			synctest.Wait()
			mock.Add(0)
			if want == "" {
				mock.Add(time.Second / 2)
				synctest.Wait()
			}
		}
	})
	bubble(t, "timeout names the silent, the next does better", func(t *testing.T) {
		a, b, z := &fake{name: "a"}, &fake{name: "b", mute: true}, &fake{name: "z", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithTimeout(time.Minute)}, a, z, b)
		began := time.Now()
		_, err := c.Trigger(ctx)
		require.EqualError(t, err, `checkpoint 1: not complete after 1m0s: no report from "b", "z"`)
		require.Equal(t, time.Minute, time.Since(began))
		late := b.barrier()
		b.mute, z.mute = false, false
		require.EqualValues(t, 2, must(c.Trigger(ctx)))
		late.Report("b", nil, errTest) // ignored
		require.Equal(t, "p1 a1 p2 c2", b.history())
		require.NoError(t, c.Err())
	})
	bubble(t, "a report to an earlier checkpoint does not count for the present one", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		a := &fake{name: "a", mute: true}
		c := startWith(t, store, []Option{WithTimeout(time.Second)}, a)
		_, err := c.Trigger(ctx)
		require.Error(t, err)
		late := a.barrier()
		done := make(chan error, 1)
		go func() { _, err := c.Trigger(ctx); done <- err }()
		synctest.Wait()
		late.Report("a", participant.State{[]byte("late")}, nil)
		synctest.Wait()
		require.Empty(t, done)
		a.barrier().Report("a", participant.State{[]byte("in time")}, nil)
		require.NoError(t, <-done)
		s := must(store.Load(ctx, 2))
		require.Equal(t, "in time", string(s.States["a"].Bytes()))
	})
	bubble(t, "participant error", func(t *testing.T) {
		a, b := &fake{name: "a", fails: errTest}, &fake{name: "b", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a, b)
		_, err := c.Trigger(ctx)
		require.ErrorIs(t, err, errTest)
		require.ErrorContains(t, err, `checkpoint 1: checkpoint: state of "a" in checkpoint 1: `)
		a.fails, b.mute = nil, false
		must(c.Trigger(ctx))
	})
	bubble(t, "store failure", func(t *testing.T) {
		store := &badStore{MemoryStore: checkpointtest.NewMemoryStore(), fail: true}
		a := &fake{name: "a"}
		c := startWith(t, store, nil, a)
		_, err := c.Trigger(ctx)
		require.ErrorIs(t, err, errTest)
		require.Zero(t, c.LastComplete())
		store.fail = false
		must(c.Trigger(ctx))
		require.Equal(t, "p1 a1 p2 c2", a.history())
		store.fail = true
		require.ErrorIs(t, c.Finish(ctx, Drain), errTest)
		require.ErrorIs(t, c.Wait(), errTest, "without its final checkpoint the stream has not ended well")
	})
	bubble(t, "context of Trigger", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Trigger(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"a"`)
		require.NoError(t, c.Err())
	})
	bubble(t, "draining is unbounded, final checkpoints are not", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithTimeout(time.Second)}, a)
		c.Host().RequestFinal(participant.Drain)
		c.Host().RequestFinal(participant.Drain)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, "p1", a.history())
		a.barrier().Report("a", participant.State{}, nil)
		synctest.Wait()
		a.barrier().Report("a", participant.State{}, nil)
		require.NoError(t, c.Wait())
		require.Equal(t, "p1 p2 c2", a.history())
		_, err := c.Trigger(ctx)
		require.EqualError(t, err, "checkpoint: the stream has ended")
		require.Panics(t, func() { _ = c.Finish(ctx, Periodic) })

		for _, kind := range []Kind{Suspend, Drain} {
			a = &fake{name: "a", mute: true}
			c = startWith(t, checkpointtest.NewMemoryStore(), []Option{WithTimeout(time.Second)}, a)
			go func() {
				synctest.Wait()
				if b := a.barrier(); b.Kind == participant.EndOfInput {
					b.Report("a", participant.State{}, nil)
				}
			}()
			require.ErrorContains(t, c.Finish(ctx, kind), "after 1s")
			require.Error(t, c.Wait())
		}
	})
	bubble(t, "fail and close end what is under way", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		host := c.Host() // c is assigned again below, perhaps before the second Fail
		time.AfterFunc(time.Second, func() { host.Fail("a", errTest); host.Fail("a", errors.New("too late")) })
		_, err := c.Trigger(ctx)
		require.ErrorIs(t, err, errTest)
		require.EqualError(t, c.Wait(), `checkpoint: "a" failed: broken on purpose`)
		require.Equal(t, "p1 a1", a.history())
		c = startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		time.AfterFunc(time.Second, func() { _ = c.Close() })
		_, err = c.Trigger(ctx)
		require.ErrorIs(t, err, ErrClosed)
	})
	// C2: a run that failed because a barrier came twice has states that do not fit
	// together.
	bubble(t, "what all have reported is not stored if the run has failed", func(t *testing.T) {
		for range 20 { // select takes either case first
			a := &fake{name: "a"}
			c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
			a.onPending = func() { c.Host().Fail("a", errTest) }
			_, err := c.Trigger(ctx)
			require.ErrorIs(t, err, errTest)
			require.Zero(t, c.LastComplete())
		}
	})
	bubble(t, "a failure on completion of the final checkpoint", func(t *testing.T) {
		a := &fake{name: "a"}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		a.onCompleted = func() { c.Host().Fail("a", errTest) }
		require.ErrorIs(t, c.Finish(ctx, Drain), errTest)
	})
	bubble(t, "close waits for a save", func(t *testing.T) {
		store := &badStore{MemoryStore: checkpointtest.NewMemoryStore(), gate: make(chan struct{})}
		c := startWith(t, store, nil, &fake{name: "a"})
		go func() { must(c.Trigger(ctx)) }()
		synctest.Wait()
		time.AfterFunc(ClosePatience-1, func() { close(store.gate) })
		began := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, ClosePatience-1, time.Since(began))
	})
	bubble(t, "close while the final checkpoint is saved", func(t *testing.T) {
		for _, broken := range []error{nil, errTest} {
			store := &badStore{MemoryStore: checkpointtest.NewMemoryStore(), gate: make(chan struct{}), fail: broken != nil}
			c := startWith(t, store, nil, &fake{name: "a"})
			finished := make(chan error, 1)
			go func() { finished <- c.Finish(ctx, Suspend) }()
			synctest.Wait()
			closed := make(chan error, 1)
			go func() { closed <- c.Close() }()
			synctest.Wait()
			close(store.gate)
			require.NoError(t, <-closed)
			require.ErrorIs(t, <-finished, broken)
			require.ErrorIs(t, c.Err(), broken)
			require.Equal(t, broken == nil, c.LastComplete() == 1)
		}
	})
	bubble(t, "close before all have reported the final checkpoint", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := startWith(t, store, nil, &fake{name: "a", mute: true})
		finished := make(chan error, 1)
		go func() { finished <- c.Finish(ctx, Suspend) }()
		synctest.Wait()
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-finished, ErrClosed)
		require.ErrorIs(t, c.Err(), ErrClosed)
	})
	bubble(t, "a context that has ended takes no checkpoint", func(t *testing.T) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for range 50 { // if several cases are ready, select takes any
			a := &fake{name: "a", mute: true}
			c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
			_, err := c.Trigger(ended)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, c.Finish(ended, Drain), context.Canceled)
			require.ErrorIs(t, c.Finish(ended, Suspend), context.Canceled)
			require.Empty(t, a.history())
			require.NoError(t, c.Err())
			require.NoError(t, c.Close())
		}
	})
	bubble(t, "who joins a draining stream may give up", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		c.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		marker := a.barrier()
		var joiners []chan error
		short, cancel := context.WithCancel(ctx)
		for range 20 { // any of the goroutines may be first
			joined := make(chan error, 1)
			joiners = append(joiners, joined)
			go func() { joined <- c.Finish(short, Drain) }()
		}
		synctest.Wait()
		marker.Report("a", participant.State{}, nil)
		synctest.Wait()
		cancel()
		for _, joined := range joiners {
			require.ErrorIs(t, <-joined, context.Canceled)
		}
		select {
		case <-c.Host().Ended():
			require.Fail(t, "the run is over", "%v", c.Err())
		default:
		}
		patient := make(chan error, 1)
		go func() { patient <- c.Finish(ctx, Drain) }()
		synctest.Wait()
		a.barrier().Report("a", participant.State{}, nil)
		require.NoError(t, c.Wait())
		require.NoError(t, <-patient)
	})
	bubble(t, "who joins does not take the final checkpoint", func(t *testing.T) {
		slow := &slowHandler{Handler: slog.DiscardHandler, gate: make(chan struct{})}
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithTimeout(time.Minute), WithLogger(slog.New(slow))}, a)
		c.Host().RequestFinal(participant.Drain)
		time.Sleep(time.Minute) // the drainer blocks in its warning, so the other caller is first to see that the marker was reported
		short, cancel := context.WithCancel(ctx)
		joined := make(chan error, 1)
		go func() { joined <- c.Finish(short, Drain) }()
		synctest.Wait()
		a.barrier().Report("a", participant.State{}, nil)
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-joined, context.Canceled)
		close(slow.gate)
		synctest.Wait()
		a.barrier().Report("a", participant.State{}, nil)
		require.NoError(t, c.Wait())
	})
	bubble(t, "nothing before the start", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Trigger(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Start(), ErrClosed)
		c.Host().Fail("x", errTest)
		require.ErrorIs(t, c.Err(), ErrClosed)
	})
}

func TestStartErrors(t *testing.T) {
	store := checkpointtest.NewMemoryStore()
	c := startWith(t, store, nil, &fake{name: "a"}, &fake{name: "b"})
	must(c.Trigger(t.Context()))
	c = must(NewCoordinator(store.Reopen()))
	for _, name := range []string{"a", "a", "", "\xff", strings.Repeat("x", MaxNameLength+1), "new"} {
		c.Host().Register(name, &fake{})
	}
	c.Host().Refuse("a", errTest)
	err := c.Start()
	for _, want := range []string{
		`two participants are named "a"`, "without a name", `state of "new" in checkpoint 1: its state is missing there; the checkpoint has states of ["a" "b"]`,
		`state of "a" in checkpoint 1: broken on purpose`, `state of "b" in checkpoint 1: no participant of this name has registered`, "not UTF-8",
	} {
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, err, c.Wait())
	c.Host().Register("late", &fake{})
	select {
	case <-c.Host().Started():
		t.Fatal("started")
	default:
	}
	require.NoError(t, c.Close())
}

// A participant that is registered after the start fails the run: otherwise its part of
// the pipeline would silently run without checkpoints.
func TestCoordinator_ParticipantAfterTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.txt")
	require.NoError(t, os.WriteFile(path, []byte("of an earlier run\n"), 0o600))
	for want, late := range map[string]func(c *Coordinator){
		`participant "x" was registered after the start`: func(c *Coordinator) { c.Host().Register("x", &fake{}) },
		`participant "source" was registered after the start`: func(c *Coordinator) {
			for v := range NewSource(c, "source", checkpointtest.NewSliceInput([]int{1, 2, 3})).Out() {
				require.IsType(t, 0, v)
			}
		},
		`participant "sink" was registered after the start`: func(c *Coordinator) {
			sink := NewSink(c, "sink", files.NewLineOutput(path))
			close(sink.In())
			sink.AwaitCompletion()
		},
		`state of "a"`: func(c *Coordinator) { c.Host().Refuse("a", errTest) },
	} {
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, &fake{name: "a"})
		late(c)
		require.ErrorContains(t, c.Wait(), want)
	}
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "of an earlier run\n", string(kept))
}

func TestStateErrorText(t *testing.T) {
	refuse := func(store Store) error {
		c := must(NewCoordinator(store))
		defer c.Close()
		c.Host().Register("rows", &fake{name: "rows"})
		c.Host().Refuse("rows", errTest)
		return c.Start()
	}
	err := refuse(checkpointtest.NewMemoryStore())
	require.ErrorIs(t, err, errTest)
	assert.EqualError(t, err, `checkpoint: state of "rows": broken on purpose`)
	store := checkpointtest.NewMemoryStore()
	require.NoError(t, store.Save(t.Context(), &Snapshot{ID: 7, States: map[string]participant.State{"rows": {}}}))
	assert.EqualError(t, refuse(store), `checkpoint: state of "rows" in checkpoint 7: broken on purpose`)
}

func TestNumbersGoOnPastDamagedCheckpoints(t *testing.T) {
	dir := t.TempDir()
	store := must(files.OpenDir(dir))
	c := startWith(t, store, nil, &fake{name: "a"})
	must(c.Trigger(t.Context()))
	must(c.Trigger(t.Context()))
	require.NoError(t, c.Close())
	damage(t, dir, 2)
	c = startWith(t, must(files.OpenDir(dir)), nil, &fake{name: "a"})
	id, _ := c.Restored()
	require.EqualValues(t, 1, id)
	require.EqualValues(t, 3, must(c.Trigger(t.Context())))
}

func TestCoordinatorTriggerWithInterval_Concurrent(t *testing.T) {
	a, b := &fake{name: "a"}, &fake{name: "b"}
	c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithInterval(time.Microsecond)}, a, b)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				_, err := c.Trigger(t.Context())
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Finish(t.Context(), Drain))
	require.NoError(t, c.Wait())
	markers := 0
	for i, what := range strings.Fields(a.history()) { // one at a time
		if what == fmt.Sprintf("p%d", c.DrainID()) {
			markers++
			continue
		}
		i += markers // it is never completed
		require.Equal(t, fmt.Sprintf("%c%d", "pc"[i%2], i/2+1), what)
	}
	require.Equal(t, 1, markers)
}

// damage flips a bit of a stored checkpoint.
func damage(t *testing.T, dir string, id uint64) {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("checkpoint-%020d.weir", id))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// Without a checkpoint, a file that is not empty is emptied only with WithOverwrite.
func TestFileOutputDoesNotOverwrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.txt")
	begin := func(output *files.Output[string]) error {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		sink := NewSink(c, "rows", output)
		err := c.Start()
		close(sink.In())
		sink.AwaitCompletion()
		require.NoError(t, c.Close())
		return err
	}
	require.NoError(t, begin(files.NewLineOutput(path)), "absent")
	require.NoError(t, begin(files.NewLineOutput(path)), "empty")
	require.NoError(t, os.WriteFile(path, []byte("precious\n"), 0o600))
	require.NoError(t, os.WriteFile(path+".part-0", []byte("and this"), 0o600))
	err := begin(files.NewLineOutput(path))
	require.ErrorContains(t, err, path+" has 9 bytes, but there is no checkpoint to resume from")
	require.ErrorContains(t, err, `state of "rows"`)
	require.Equal(t, "precious\n", string(must(os.ReadFile(path))))
	require.FileExists(t, path+".part-0", "nothing is touched")
	require.NoError(t, begin(files.NewLineOutput(path).WithOverwrite()))
	require.Empty(t, must(os.ReadFile(path)))
	require.NoFileExists(t, path+".part-0")
}
