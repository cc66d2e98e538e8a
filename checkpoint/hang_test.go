package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
)

// If a Save ignores its context, checkpoints continue: each fails and is counted until
// the Save has returned (law A6).
func TestSaveThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: func(context.Context, *Snapshot) error { <-gate; return nil }}
		var book bytes.Buffer
		c := startWith(t, store, []Option{WithTimeout(time.Minute), WithLogger(slog.New(slog.NewTextHandler(&book, nil)))}, &fake{name: "a"})
		began := time.Now()
		_, err := c.Trigger(t.Context())
		require.ErrorContains(t, err, "not stored after 1m0s, and the call has not returned 5s after the end of its context")
		require.Equal(t, time.Minute+ClosePatience, time.Since(began))
		_, err = c.Trigger(t.Context())
		require.ErrorContains(t, err, "an earlier call of the store has not returned")
		require.EqualValues(t, 2, c.Stats().Failed)
		require.Contains(t, book.String(), "checkpoint aborted")
		require.Equal(t, "1", store.history(), "one call at a time")
		close(gate)
		synctest.Wait()
		_, err = c.Trigger(t.Context())
		require.NoError(t, err)

		store.save = func(context.Context, *Snapshot) error { <-t.Context().Done(); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		_, err = c.Trigger(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second+ClosePatience, time.Since(began))
	})
}

// stuckStore blocks in some methods and ignores their contexts.
type stuckStore struct {
	*checkpointtest.MemoryStore
	list, close, load func()
}

func (s stuckStore) List(ctx context.Context) ([]Entry, error) {
	s.list()
	return s.MemoryStore.List(ctx)
}

func (s stuckStore) Load(ctx context.Context, id uint64) (*Snapshot, error) {
	s.load()
	return s.MemoryStore.Load(ctx, id)
}
func (s stuckStore) Close() error { s.close(); return s.MemoryStore.Close() }

func TestStoreThatHangs(t *testing.T) {
	nothing := func() {}
	bubble(t, "List", func(t *testing.T) {
		gate := make(chan struct{})
		defer close(gate)
		_, err := NewCoordinator(stuckStore{checkpointtest.NewMemoryStore(), func() { <-gate }, nothing, nothing}, WithTimeout(time.Minute))
		require.ErrorContains(t, err, "not loaded after 1m0s, and the call has not returned")
	})
	bubble(t, "Close", func(t *testing.T) {
		gate := make(chan struct{})
		defer close(gate)
		c, err := NewCoordinator(stuckStore{checkpointtest.NewMemoryStore(), nothing, func() { <-gate }, nothing})
		require.NoError(t, err)
		require.ErrorContains(t, c.Close(), "the store has not closed after 5s")
	})
}

// hangingRestore blocks in FreshStart and ignores its context.
type hangingRestore struct {
	fragile
	gate chan struct{}
}

func (o hangingRestore) FreshStart(context.Context) error { <-o.gate; return nil }

// fragile is an output whose methods return errors.
type fragile struct{ write, commit, fresh error }

func (o fragile) FreshStart(context.Context) error      { return o.fresh }
func (o fragile) Restore(context.Context, []byte) error { return o.fresh }
func (o fragile) Write(context.Context, int) error      { return o.write }
func (fragile) Prepare(context.Context) ([]byte, error) { return []byte{}, nil }
func (o fragile) Commit(context.Context, []byte) error  { return o.commit }
func (fragile) Close() error                            { return nil }

func TestFreshStartThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithTimeout(time.Minute), WithLogger(quiet())))
		gate := make(chan struct{})
		sink := NewSink(c, "out", Output[int](hangingRestore{gate: gate}))
		require.ErrorContains(t, c.Start(), "not begun after 1m0s, and the call has not returned")
		close(gate)
		close(sink.In())
		require.NoError(t, c.Close())
	})
}

// hangingSeek blocks in Seek.
type hangingSeek struct {
	Input[int]
	gate chan struct{}
}

func (in hangingSeek) Seek([]byte) error { <-in.gate; return nil }

func TestSeekThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		require.NoError(t, store.Save(t.Context(), &Snapshot{ID: 1, Kind: Periodic, Time: time.Now(), States: map[string]participant.State{"in": {[]byte{0}}}}))
		c := must(NewCoordinator(store, WithTimeout(time.Minute), WithLogger(quiet())))
		gate := make(chan struct{})
		began := time.Now()
		NewSource(c, "in", Input[int](hangingSeek{checkpointtest.NewSliceInput([]int{1}), gate}))
		require.Equal(t, time.Minute+ClosePatience, time.Since(began))
		require.ErrorContains(t, c.Start(), "not sought after 1m0s, and the call has not returned")
		require.ErrorContains(t, c.Close(), `still reading the input of "in" after 10s`)
		close(gate)
	})
}

// typedNil is an error whose methods panic when it is nil.
type typedNil struct{ err error }

func (e *typedNil) Error() string { return e.err.Error() }
func (e *typedNil) Unwrap() error { return e.err }

// A6: a panic in a method of a user's error becomes an error.
func TestErrorsThatBreak(t *testing.T) {
	var broken *typedNil
	bubble(t, "of a store", func(t *testing.T) {
		store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1, broken)}
		c := startWith(t, store, nil, &fake{name: "a"})
		_, err := c.Trigger(t.Context())
		require.ErrorContains(t, err, "nil pointer")
		_, err = c.Trigger(t.Context())
		require.NoError(t, err)
	})
	for name, output := range map[string]fragile{"Commit": {commit: broken}, "Write": {write: broken}, "FreshStart": {fresh: broken}} {
		bubble(t, name+" of an output", func(t *testing.T) {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
			source := NewSource(c, "in", checkpointtest.NewSliceInput([]int{1}))
			sink := NewSink(c, "out", Output[int](output))
			err := c.Start()
			if name != "FreshStart" {
				require.NoError(t, err)
			}
			go func() {
				for v := range source.Out() {
					sink.In() <- v
				}
				close(sink.In())
			}()
			require.ErrorContains(t, c.Wait(), "nil pointer")
			require.False(t, errors.Is(c.Err(), ErrFenced))
			require.NoError(t, c.Close())
		})
	}
	bubble(t, "Seek of an input", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		require.NoError(t, store.Save(t.Context(), &Snapshot{ID: 1, Kind: Periodic, Time: time.Now(), States: map[string]participant.State{"in": {[]byte{0}}}}))
		c := must(NewCoordinator(store, WithLogger(quiet())))
		NewSource(c, "in", Input[int](brokenSeek{checkpointtest.NewSliceInput([]int{1}), broken}))
		require.ErrorContains(t, c.Start(), "nil pointer")
		require.NoError(t, c.Close())
	})
}

type brokenSeek struct {
	Input[int]
	err error
}

func (in brokenSeek) Seek([]byte) error { return in.err }

// brokenHandler is a log handler that panics.
type brokenHandler struct {
	slog.Handler
	breaks func()
}

func (h brokenHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h brokenHandler) Handle(context.Context, slog.Record) error { h.breaks(); return nil }

// A6: the run continues if a log handler panics.
func TestWithLogger_LoggerThatBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit} {
		bubble(t, name, func(t *testing.T) {
			store := &troubledStore{MemoryStore: checkpointtest.NewMemoryStore(), save: times(1, errors.New("full"))}
			c := startWith(t, store, []Option{WithLogger(slog.New(brokenHandler{slog.DiscardHandler, breaks}))}, &fake{name: "a"})
			_, err := c.Trigger(t.Context())
			require.ErrorContains(t, err, "full")
			_, err = c.Trigger(t.Context())
			require.NoError(t, err)
		})
	}
}
