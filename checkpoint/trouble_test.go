package checkpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
)

// troubledStore has a Save that the test replaces.
type troubledStore struct {
	*checkpointtest.MemoryStore
	save func(ctx context.Context, s *Snapshot) error

	mu    sync.Mutex
	saves []string // guarded by mu
}

func (s *troubledStore) Save(ctx context.Context, snap *Snapshot) error {
	s.mu.Lock()
	s.saves = append(s.saves, fmt.Sprint(snap.ID))
	s.mu.Unlock()
	if s.save != nil {
		if err := s.save(ctx, snap); err != nil {
			return err
		}
	}
	return s.MemoryStore.Save(ctx, snap)
}

func (s *troubledStore) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.saves, " ")
}

// times returns a function that fails n times.
func times(n int, err error) func(context.Context, *Snapshot) error {
	return func(context.Context, *Snapshot) error {
		if n--; n >= 0 {
			return err
		}
		return nil
	}
}

func untilDone(ctx context.Context, _ *Snapshot) error {
	<-ctx.Done()
	return ctx.Err()
}

// The context of a Save ends after the timeout, and when Close has waited for
// closePatience.
func TestWithTimeout_SaveThatHangs(t *testing.T) {
	take := map[string]func(c *Coordinator) error{
		"periodic": func(c *Coordinator) error { _, err := c.Trigger(context.Background()); return err },
		"final":    func(c *Coordinator) error { return c.Finish(context.Background(), Suspend) },
	}
	for kind, take := range take {
		bubble(t, kind+", until the timeout", func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: untilDone}
			c := startWith(t, store, []Option{WithTimeout(time.Minute)}, &fake{name: "a"})
			began := time.Now()
			err := take(c)
			require.ErrorContains(t, err, "not stored after 1m0s")
			require.ErrorIs(t, err, context.Canceled, "the store's own error")
			require.Equal(t, time.Minute, time.Since(began))
			if kind == "periodic" {
				store.save = nil
				require.NoError(t, take(c), "the next one does better")
			}
		})
		bubble(t, kind+", until Close", func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: untilDone}
			c := startWith(t, store, nil, &fake{name: "a"})
			taken := make(chan error, 1)
			go func() { taken <- take(c) }()
			synctest.Wait()
			began := time.Now()
			require.NoError(t, c.Close())
			require.Equal(t, ClosePatience, time.Since(began))
			require.ErrorIs(t, <-taken, ErrClosed)
			require.ErrorIs(t, c.Err(), ErrClosed)
		})
		bubble(t, kind+", whatever its context", func(t *testing.T) {
			gate := make(chan struct{})
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: func(context.Context, *Snapshot) error { <-gate; return nil }}
			c := must(NewCoordinator(store, WithLogger(quiet())))
			c.Host().Register("a", &fake{name: "a"})
			require.NoError(t, c.Start())
			go func() { _ = take(c) }()
			synctest.Wait()
			began := time.Now()
			require.ErrorContains(t, c.Close(), "still storing checkpoint 1 after 10s, although its context has ended: the store stays open")
			require.Equal(t, 2*ClosePatience, time.Since(began))
			_, err := store.List(t.Context())
			require.NoError(t, err, "it is not given to another run while this one may write to it")
			close(gate)
			synctest.Wait()
			_, err = store.List(t.Context())
			require.ErrorIs(t, err, ErrClosed)
			require.NoError(t, c.Close(), "now it has")
		})
	}
}

// A failing Save of a final checkpoint is repeated until the timeout.
func TestFinalSaveIsTriedAgain(t *testing.T) {
	for _, kind := range []Kind{Drain, Suspend} {
		bubble(t, kind.String(), func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(3, errTest)}
			a := &fake{name: "a"}
			c := startWith(t, store, nil, a)
			began := time.Now()
			require.NoError(t, c.Finish(t.Context(), kind))
			require.Equal(t, 700*time.Millisecond, time.Since(began))
			id := fmt.Sprint(c.LastComplete())
			require.Equal(t, strings.Repeat(id+" ", 3)+id, store.history(), "the same snapshot")
			require.NoError(t, c.Err())
			require.Contains(t, a.history(), "c"+id)
		})
	}
	bubble(t, "until the timeout", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1<<30, errTest)}
		c := startWith(t, store, []Option{WithTimeout(time.Minute)}, &fake{name: "a"})
		began := time.Now()
		err := c.Finish(t.Context(), Suspend)
		require.ErrorIs(t, err, errTest)
		require.ErrorContains(t, err, "not stored after 1m0s")
		require.Equal(t, time.Minute, time.Since(began))
	})
	bubble(t, "until a participant fails", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1<<30, errTest)}
		c := startWith(t, store, nil, &fake{name: "a"})
		time.AfterFunc(time.Second, func() { c.Host().Fail("a", errors.New("another reason")) })
		require.ErrorIs(t, c.Finish(t.Context(), Suspend), errTest)
		require.ErrorContains(t, c.Err(), "another reason")
	})
	bubble(t, "until Close has waited", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1<<30, errTest)}
		c := startWith(t, store, nil, &fake{name: "a"})
		finished := make(chan error, 1)
		go func() { finished <- c.Finish(context.Background(), Suspend) }()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, ClosePatience, time.Since(began))
		require.ErrorIs(t, <-finished, errTest)
	})
	for name, permanent := range map[string]error{
		"closed": ErrClosed, "invalid": ErrInvalidSnapshot, "fenced": ErrFenced, "number": &NumberError{1, 1}, "panic": &guard.PanicError{},
	} {
		bubble(t, "not if it cannot succeed: "+name, func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1, permanent)}
			c := startWith(t, store, nil, &fake{name: "a"})
			require.ErrorIs(t, c.Finish(t.Context(), Suspend), permanent)
			require.Equal(t, "1", store.history())
		})
	}
	bubble(t, "a periodic one is not", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1, errTest)}
		c := startWith(t, store, nil, &fake{name: "a"})
		_, err := c.Trigger(t.Context())
		require.ErrorIs(t, err, errTest)
		require.EqualValues(t, 2, must(c.Trigger(t.Context())))
		require.Equal(t, "1 2", store.history())
	})
}

// troubledOutput has a Commit that the test replaces.
type troubledOutput struct {
	*recorder
	commit func(ctx context.Context, _ *Snapshot) error
}

func (o *troubledOutput) Commit(ctx context.Context, state []byte) error {
	_ = o.recorder.Commit(ctx, state)
	return o.commit(ctx, nil)
}

// A failing Commit is repeated until the timeout. After that the run has failed, and a
// restart commits.
func TestCommitIsTriedAgain(t *testing.T) {
	start := func(commit func(context.Context, *Snapshot) error, opts ...Option) (*Coordinator, *Sink[string], *troubledOutput, *fake) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), append(opts, WithLogger(quiet()))...))
		out := &troubledOutput{newRecorder(), commit}
		src := &fake{name: "src"}
		c.Host().Register("src", src)
		s := NewSink[string](c, "sink", out)
		if err := c.Start(); err != nil {
			panic(err)
		}
		return c, s, out, src
	}
	trigger := func(c *Coordinator, s *Sink[string], src *fake) {
		go func() { _, _ = c.Trigger(context.Background()) }()
		synctest.Wait()
		s.In() <- src.barrier()
		synctest.Wait()
	}
	end := func(t *testing.T, c *Coordinator, s *Sink[string]) {
		t.Helper()
		close(s.In())
		s.AwaitCompletion()
		require.NoError(t, c.Close())
	}
	bubble(t, "until it succeeds", func(t *testing.T) {
		c, s, out, src := start(times(2, errTest))
		trigger(c, s, src)
		require.Equal(t, "fresh, prepare, commit [7]", out.history())
		require.NoError(t, s.Err(), "it does not wait for Commit")
		time.Sleep(time.Second)
		require.Equal(t, "fresh, prepare, commit [7], commit [7], commit [7]", out.history())
		trigger(c, s, src)
		require.EqualValues(t, 2, c.LastComplete())
		require.NoError(t, c.Err())
		end(t, c, s)
	})
	bubble(t, "until the timeout", func(t *testing.T) {
		c, s, _, src := start(times(1<<30, errTest), WithTimeout(time.Minute))
		began := time.Now()
		trigger(c, s, src)
		require.ErrorIs(t, c.Wait(), errTest)
		require.Equal(t, time.Minute, time.Since(began))
		require.EqualValues(t, 1, c.LastComplete(), "a restart commits it")
		require.ErrorContains(t, s.Err(), "commit of checkpoint 1: not published after 1m0s")
		end(t, c, s)
	})
	bubble(t, "a commit that hangs has its context ended", func(t *testing.T) {
		c, s, _, src := start(untilDone, WithTimeout(time.Minute))
		trigger(c, s, src)
		require.ErrorContains(t, c.Wait(), "not published after 1m0s")
		end(t, c, s)
	})
	bubble(t, "until the run has failed", func(t *testing.T) {
		c, s, out, src := start(times(1<<30, errTest))
		trigger(c, s, src)
		c.Host().Fail("op", errTest)
		synctest.Wait()
		before := out.history()
		time.Sleep(time.Hour)
		require.Equal(t, before, out.history())
		end(t, c, s)
	})
	bubble(t, "not if the output is fenced", func(t *testing.T) {
		c, s, out, src := start(times(1, ErrFenced))
		trigger(c, s, src)
		require.ErrorIs(t, c.Wait(), ErrFenced)
		require.Equal(t, "fresh, prepare, commit [7]", out.history())
		end(t, c, s)
	})
	bubble(t, "Close ends its context", func(t *testing.T) {
		c, s, _, src := start(untilDone)
		trigger(c, s, src)
		began := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, ClosePatience, time.Since(began))
		end(t, c, s)
	})
	bubble(t, "Write has a context that ends with the run", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		s := NewSink[string](c, "sink", &blockedOutput{newRecorder()})
		require.NoError(t, c.Start())
		s.In() <- "a"
		synctest.Wait()
		began := time.Now()
		require.NoError(t, c.Close())
		require.Zero(t, time.Since(began))
		end(t, c, s)
	})
}

// A Write that hangs blocks a checkpoint until the timeout. Then the run has failed, and
// a restart commits.
func TestCommitDoesNotWaitForEverForAWrite(t *testing.T) {
	for name, until := range map[string]time.Duration{"until the timeout": time.Minute, "until Close has waited": ClosePatience} {
		bubble(t, name, func(t *testing.T) {
			store := &badStore{MemoryStore: checkpointtest.NewMemoryStore(), gate: make(chan struct{})}
			c := must(NewCoordinator(store, WithLogger(quiet()), WithTimeout(time.Minute)))
			src := &fake{name: "src"}
			c.Host().Register("src", src)
			out := &slowOutput{recorder: newRecorder(), gate: make(chan struct{})}
			s := NewSink[string](c, "sink", out)
			require.NoError(t, c.Start())
			taken := make(chan error, 1)
			go func() { _, err := c.Trigger(context.Background()); taken <- err }()
			synctest.Wait()
			s.In() <- src.barrier()
			s.In() <- "a"
			out.gate <- struct{}{}   // a is being written
			store.gate <- struct{}{} // the checkpoint is stored
			began := time.Now()
			closed := make(chan error, 1)
			if until == ClosePatience {
				go func() { closed <- c.Close() }()
			} else {
				require.ErrorContains(t, c.Wait(), "commit of checkpoint 1: not published after 1m0s: a Write has not returned")
			}
			require.NoError(t, <-taken)
			require.Equal(t, until, time.Since(began))
			require.EqualValues(t, 1, c.LastComplete(), "a restart commits it")
			close(out.gate)
			close(s.In())
			s.AwaitCompletion()
			if until == ClosePatience {
				require.NoError(t, <-closed)
			}
			require.NoError(t, c.Close())
			require.Equal(t, "fresh, prepare, write a, close", out.history())
		})
	}
}

// blockedOutput blocks in Write until its context ends.
type blockedOutput struct{ *recorder }

func (o *blockedOutput) Write(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// A run whose store belongs to another run ends, even if a later number is free again.
func TestFencedRunEnds(t *testing.T) {
	for name, lost := range map[string]error{"fenced": ErrFenced, "a number that is taken": &NumberError{Checkpoint: 1, Newest: 7}} {
		bubble(t, name, func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1, lost)}
			a := &fake{name: "a"}
			c := startWith(t, store, nil, a)
			_, err := c.Trigger(t.Context())
			require.ErrorIs(t, err, ErrFenced)
			require.ErrorIs(t, err, lost)
			require.ErrorIs(t, c.Wait(), ErrFenced)
			_, err = c.Trigger(t.Context())
			require.ErrorIs(t, err, ErrFenced)
			require.Equal(t, "p1 a1", a.history())
			require.Equal(t, "1", store.history())
		})
	}
	bubble(t, "two runs on one store", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		stale := startWith(t, store, nil, &fake{name: "a"})
		must(stale.Trigger(t.Context()))
		owner := startWith(t, store.Reopen(), nil, &fake{name: "a"})
		_, err := stale.Trigger(t.Context())
		require.ErrorIs(t, err, ErrFenced, "also while the next number is free (law P1)")
		require.ErrorIs(t, stale.Err(), ErrFenced)
		require.EqualValues(t, 2, must(owner.Trigger(t.Context())))
	})
}

// The run ends as fenced even if the caller's context has ended.
func TestFencedWhileTheCallerGivesUp(t *testing.T) {
	bubble(t, "trigger", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: func(context.Context, *Snapshot) error { cancel(); return ErrFenced }}
		c := startWith(t, store, nil, &fake{name: "a"})
		_, err := c.Trigger(ctx)
		require.ErrorIs(t, err, ErrFenced)
		require.ErrorIs(t, c.Err(), ErrFenced)
	})
}

// Law A6: a store that panics has failed to save.
func TestStoreThatPanics(t *testing.T) {
	for _, end := range []func(){func() { panic("disk") }, runtime.Goexit} {
		bubble(t, "save", func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: func(context.Context, *Snapshot) error { end(); return nil }}
			c := startWith(t, store, nil, &fake{name: "a"})
			_, err := c.Trigger(t.Context())
			require.Error(t, err)
			store.save = nil
			require.EqualValues(t, 2, must(c.Trigger(t.Context())))
		})
	}
}

func TestStatsWithClock(t *testing.T) {
	bubble(t, "all of them", func(t *testing.T) {
		mock := clock.NewMock()
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore()}
		a := &fake{name: "a", mute: true}
		c := startWith(t, store, []Option{WithClock(mock)}, a)
		began := mock.Now()
		require.Zero(t, c.Stats())
		trigger := func(report error) {
			done := make(chan struct{})
			go func() { _, _ = c.Trigger(context.Background()); close(done) }()
			synctest.Wait()
			id := a.barrier().ID
			require.Equal(t, id, c.Stats().UnderWay)
			require.Equal(t, mock.Now(), c.Stats().Since)
			mock.Add(3 * time.Second)
			a.barrier().Report("a", participant.State{[]byte("12345")}, report)
			<-done
		}
		trigger(nil)
		want := Stats{Completed: 1, LastID: 1, LastTime: began.Add(3 * time.Second), LastDuration: 3 * time.Second, LastSize: 5}
		require.Equal(t, want, c.Stats())
		trigger(errTest)
		trigger(errTest)
		got := c.Stats()
		require.ErrorIs(t, got.LastError, errTest)
		want.Failed, want.FailedInRow, want.LastError = 2, 2, got.LastError
		require.Equal(t, want, got)
		ended, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := c.Trigger(ended)
		require.Error(t, err)
		require.Equal(t, want, c.Stats(), "the caller gave up")
		trigger(nil)
		want.Completed, want.FailedInRow = 2, 0
		want.LastID, want.LastTime = 5, mock.Now()
		require.Equal(t, want, c.Stats())
		time.AfterFunc(time.Second, func() { c.Host().Fail("a", errTest) })
		_, err = c.Trigger(t.Context())
		require.Error(t, err)
		require.Equal(t, want, c.Stats(), "the run has ended")
	})
}

func TestWithTolerableFailures(t *testing.T) {
	trigger := func(c *Coordinator) { _, _ = c.Trigger(context.Background()) }
	bubble(t, "in a row", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(2, errTest)}
		c := startWith(t, store, []Option{WithTolerableFailures(2)}, &fake{name: "a"})
		for range 3 {
			trigger(c)
		}
		store.save = times(3, errTest)
		trigger(c)
		trigger(c)
		require.NoError(t, c.Err())
		trigger(c)
		require.ErrorIs(t, c.Err(), errTest)
		require.ErrorContains(t, c.Err(), "3 in a row have failed, 2 are tolerated")
		require.EqualValues(t, 3, c.LastComplete())
	})
	bubble(t, "none", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1, errTest)}
		c := startWith(t, store, []Option{WithTolerableFailures(0)}, &fake{name: "a"})
		trigger(c)
		require.ErrorIs(t, c.Wait(), errTest)
	})
	bubble(t, "any number", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(100, errTest)}
		c := startWith(t, store, nil, &fake{name: "a"})
		for range 101 {
			trigger(c)
		}
		require.NoError(t, c.Err())
		require.EqualValues(t, 101, c.LastComplete())
	})
	require.PanicsWithValue(t, "checkpoint: WithTolerableFailures: negative number: -1", func() { WithTolerableFailures(-1) })
}

// In JSON an error is a text without the secrets of URLs, and no other field is missing.
func TestStats_AsJSON(t *testing.T) {
	s := Stats{Completed: 2, Failed: 3, FailedInRow: 1, LastID: 2, LastSize: 7, LastDuration: time.Second, UnderWay: 4}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var same Stats
	require.NoError(t, json.Unmarshal(text, &same))
	require.Equal(t, s, same)
	s.LastError = errors.New("https://ann:s3cret@bucket is full")
	text, err = json.Marshal(s)
	require.NoError(t, err)
	require.Contains(t, string(text), `"LastError":"https://ann:xxxxx@bucket is full"`)
}
