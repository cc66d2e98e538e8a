package checkpoint_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
)

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines returns the lines with a text that were logged since the last call.
func (l *logBuffer) lines(text string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	l.b.Reset()
	return lines
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// An operator that is registered but not part of the pipeline does not report. A warning
// names it long before the checkpoint times out.
func TestParticipantsThatDoNotReportAreNamed(t *testing.T) {
	bubble(t, "checkpoint", func(t *testing.T) {
		var log logBuffer
		a, b := &fake{name: "a"}, &fake{name: "b"}
		c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithLogger(log.logger())}, a, b)
		must(c.Trigger(t.Context()))
		time.Sleep(time.Hour)
		require.Empty(t, log.lines("WARN"))

		b.mute = true
		taken := make(chan error, 1)
		go func() { _, err := c.Trigger(t.Context()); taken <- err }()
		time.Sleep(ReportPatience - 1)
		require.Empty(t, log.lines("WARN"))
		time.Sleep(1)
		synctest.Wait()
		lines := log.lines("WARN")
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], `checkpoint=2`)
		require.Contains(t, lines[0], `"no report from"=b`)
		require.NotContains(t, lines[0], "never")
		time.Sleep(2 * ReportPatience)
		synctest.Wait()
		require.Len(t, log.lines("WARN"), 1)
		b.barrier().Report("b", participant.State{}, nil)
		require.NoError(t, <-taken)
	})
	bubble(t, "never heard of", func(t *testing.T) {
		for _, drain := range []bool{false, true} {
			var log logBuffer
			a, b := &fake{name: "a"}, &fake{name: "b", mute: true}
			c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithLogger(log.logger())}, a, b)
			ctx, cancel := context.WithTimeout(t.Context(), ReportPatience)
			if drain {
				require.ErrorContains(t, c.Finish(ctx, Drain), `no report from "b"`)
			} else {
				_, err := c.Trigger(ctx)
				require.ErrorContains(t, err, `no report from "b"`)
			}
			cancel()
			require.NotEmpty(t, log.lines(`"never reported, so perhaps not part of the pipeline"=b`))
		}
	})
}

// hangingStore waits in List until its context ends.
type hangingStore struct{ *checkpointtest.MemoryStore }

func (hangingStore) List(ctx context.Context) ([]Entry, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// hangingOutput waits in Restore and in FreshStart.
type hangingOutput struct{ Output[string] }

func (hangingOutput) FreshStart(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingOutput) Restore(ctx context.Context, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingOutput) Close() error { return nil }

// The contexts of calls during construction and Start end after WithTimeout.
func TestBeginningIsBounded(t *testing.T) {
	bubble(t, "store", func(t *testing.T) {
		_, err := NewCoordinator(hangingStore{}, WithTimeout(time.Minute))
		require.ErrorContains(t, err, "not loaded after 1m0s")
		require.ErrorIs(t, err, context.Canceled)
	})
	for name, state := range map[string]map[string]participant.State{"fresh": nil, "restored": {"rows": {}}} {
		bubble(t, name, func(t *testing.T) {
			store := checkpointtest.NewMemoryStore()
			if state != nil {
				require.NoError(t, store.Save(t.Context(), &Snapshot{ID: 1, States: state}))
			}
			c := must(NewCoordinator(store, WithLogger(quiet()), WithTimeout(time.Minute)))
			sink := NewSink(c, "rows", Output[string](hangingOutput{}))
			err := c.Start()
			require.ErrorContains(t, err, `state of "rows"`)
			require.ErrorContains(t, err, "not begun after 1m0s")
			close(sink.In())
			sink.AwaitCompletion()
			require.NoError(t, c.Close())
		})
	}
}

// A participant without a state in the checkpoint is refused, unless WithNewParticipants
// names it.
func TestWithNewParticipants(t *testing.T) {
	store := checkpointtest.NewMemoryStore()
	require.NoError(t, store.Save(t.Context(), &Snapshot{ID: 4, States: map[string]participant.State{"a": {{1}}}}))
	restart := func(opts ...Option) (c *Coordinator, resumes [2]bool, err error) {
		store = store.Reopen()
		c = must(NewCoordinator(store, append(opts, WithLogger(quiet()))...))
		t.Cleanup(func() { _ = c.Close() })
		for i, name := range []string{"a", "new"} {
			_, resumes[i] = c.Host().Register(name, &fake{name: name})
		}
		return c, resumes, c.Start()
	}
	_, _, err := restart()
	require.ErrorContains(t, err, `state of "new" in checkpoint 4: its state is missing there`)
	require.ErrorContains(t, err, `the checkpoint has states of ["a"]`)
	require.ErrorContains(t, err, `WithNewParticipants("new")`)

	c, resumes, err := restart(WithNewParticipants("other", "new"))
	require.NoError(t, err)
	require.Equal(t, [2]bool{true, false}, resumes)
	must(c.Trigger(t.Context()))
	require.NoError(t, c.Close())

	_, resumes, err = restart(WithNewParticipants("new", "a"))
	require.NoError(t, err)
	require.Equal(t, [2]bool{true, true}, resumes, "those that have a state get it, so the option may stay")

	c = must(NewCoordinator(store.Reopen(), WithNewParticipants("src")))
	src := NewSource(c, "src", checkpointtest.NewSliceInput([]int{1}))
	c.Host().Register("a", &fake{name: "a"})
	c.Host().Register("new", &fake{name: "new"})
	require.ErrorContains(t, c.Start(), `state of "src" in checkpoint 5: its state is missing there`, "a new source would begin at its first element")
	for range src.Out() {
	}
	require.NoError(t, c.Close())

	require.PanicsWithValue(t, "checkpoint: WithNewParticipants: name 1 is empty", func() { WithNewParticipants("a", "") })
}

// If newer checkpoints were lost, a file is longer than at the checkpoint that the run
// resumes from. The cut is logged.
func TestRestoreLogsWhatItCutsOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.txt")
	o := files.NewLineOutput(path)
	require.NoError(t, o.FreshStart(t.Context()))
	require.NoError(t, o.Write(t.Context(), "one"))
	state := must(o.Prepare(t.Context()))
	require.NoError(t, o.Commit(t.Context(), state))
	require.NoError(t, o.Write(t.Context(), "two"))
	later := must(o.Prepare(t.Context()))
	require.NoError(t, o.Commit(t.Context(), later))
	require.NoError(t, o.Close())

	restore := func(state []byte) []string {
		var log logBuffer
		store := checkpointtest.NewMemoryStore()
		require.NoError(t, store.Save(t.Context(), &Snapshot{ID: 1, States: map[string]participant.State{"rows": {state}}}))
		c := must(NewCoordinator(store, WithLogger(log.logger())))
		sink := NewSink(c, "rows", files.NewLineOutput(path))
		require.NoError(t, c.Start())
		require.NoError(t, c.Close())
		close(sink.In())
		sink.AwaitCompletion()
		return log.lines("WARN")
	}
	require.Empty(t, restore(later))
	lines := restore(state)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "path="+path)
	require.Contains(t, lines[0], "bytes=4")
	require.Equal(t, "one\n", string(must(os.ReadFile(path))))
	require.Empty(t, restore(state))
}
