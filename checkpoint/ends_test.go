package checkpoint_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/queue"
)

// recorder is an Input and an Output that records the calls of its methods.
type recorder struct {
	Input[string]
	fail map[string]error  // by method
	do   map[string]func() // by method: called in it

	mu    sync.Mutex
	calls []string // guarded by mu
}

func newRecorder(values ...string) *recorder {
	return &recorder{Input: checkpointtest.NewSliceInput(values), fail: map[string]error{}, do: map[string]func(){}}
}

func (r *recorder) note(method string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, strings.TrimSpace(method+" "+fmt.Sprint(args...)))
	if do := r.do[method]; do != nil {
		do()
	}
	return r.fail[method]
}

func (r *recorder) history() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.calls, ", ")
}

func (r *recorder) Commit(_ context.Context, p []byte) error  { return r.note("commit", p) }
func (r *recorder) Close() error                              { return r.note("close") }
func (r *recorder) Restore(_ context.Context, s []byte) error { return r.note("restore", s) }
func (r *recorder) FreshStart(context.Context) error          { return r.note("fresh") }
func (r *recorder) Write(_ context.Context, v string) error   { return r.note("write", v) }
func (r *recorder) Prepare(context.Context) ([]byte, error) {
	return []byte{7}, r.note("prepare")
}

func texts(out <-chan any) (all []string) {
	for v := range out {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func TestSource(t *testing.T) {
	bubble(t, "final barrier at the end, closed after the last commit", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		in := newRecorder("a", "b")
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		require.Equal(t, []string{"a", "b", "barrier 1 (end of input)", "barrier 2 (drain)"}, texts(src.Out()))
		require.NoError(t, c.Wait())
		require.Equal(t, "commit [2], close", in.history())
		require.NoError(t, c.Close())
	})
	bubble(t, "barriers go between elements; resumed at the position", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := must(NewCoordinator(store, WithLogger(quiet())))
		values := make(chan string)
		src := NewSource(c, "src", checkpointtest.NewChannelInput(values))
		require.NoError(t, c.Start())
		values <- "a"
		values <- "b"
		synctest.Wait()
		require.EqualValues(t, 1, must(c.Trigger(t.Context())))
		c.Host().Fail("x", errTest)
		got := texts(src.Out())
		require.Equal(t, []string{"a", "b", "barrier 1 (periodic)"}, got[:3])
		require.NotContains(t, strings.Join(got, " "), "drain", "aborted: no final barrier")
		require.NoError(t, c.Close())

		c = must(NewCoordinator(store.Reopen()))
		in := newRecorder("a", "b", "c")
		src2 := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		require.Equal(t, []string{"c", "barrier 2 (end of input)", "barrier 3 (drain)"}, texts(src2.Out()))
		require.NoError(t, c.Wait())
		require.NoError(t, c.Close())

		c = must(NewCoordinator(store.Reopen()))
		src3 := NewSource(c, "src", newRecorder("a"))
		require.ErrorContains(t, c.Start(), `state of "src" in checkpoint 1: checkpointtest: position 02 is outside`)
		require.Empty(t, texts(src3.Out()))
		require.NoError(t, c.Close())
	})
}

// A forgotten Start is logged with the names of all participants, by the coordinator's
// clock.
func TestStartThatIsForgotten(t *testing.T) {
	clk := clock.NewMock()
	log := make(logLines, 10)
	c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithClock(clk), WithLogger(slog.New(slog.NewTextHandler(log, nil)))))
	clk.Add(time.Hour)                                                            // before the first registration
	src := NewSource(c, "src", checkpointtest.NewChannelInput(make(chan string))) // idle
	sink := NewSink[string](c, "sink", newRecorder())
	c.Host().Register("other", nothing{})
	clk.Add(StartPatience - 1)
	require.Empty(t, log)
	clk.Add(1)
	const who = `msg="checkpoint: participants wait for Start of the coordinator, which has not been called" waiting="other, sink, src" waited=`
	require.Contains(t, <-log, who+"1s\n")
	for _, waited := range []string{"2s", "4s", "8s"} {
		d := must(time.ParseDuration(waited))
		clk.Add(d/2 - 1)
		require.Empty(t, log)
		clk.Add(1)
		require.Contains(t, <-log, who+waited+"\n")
	}
	require.NoError(t, c.Start())
	clk.Add(time.Hour)
	require.Empty(t, log)
	c.Host().Fail("other", errTest)
	for range src.Out() {
	}
	close(sink.In())
	sink.AwaitCompletion()
	require.NoError(t, c.Close())

	c = must(NewCoordinator(checkpointtest.NewMemoryStore(), WithClock(clk), WithLogger(slog.New(slog.NewTextHandler(log, nil)))))
	c.Host().Register("other", nothing{})
	require.NoError(t, c.Close())
	clk.Add(time.Hour)
	require.Empty(t, log, "closed")
}

// logLines is a writer of whole lines.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) { l <- string(line); return len(line), nil }

func TestSourceDuringCheckpoints(t *testing.T) {
	bubble(t, "the input is closed after the last commit", func(t *testing.T) {
		store := &badStore{MemoryStore: checkpointtest.NewMemoryStore(), gate: make(chan struct{})}
		c := must(NewCoordinator(store, WithLogger(quiet())))
		in := newRecorder("a")
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		require.Equal(t, []string{"a", "barrier 1 (end of input)", "barrier 2 (drain)"}, texts(src.Out()))
		synctest.Wait()
		c.Host().Fail("x", errTest) // while the final checkpoint is being stored
		require.Empty(t, in.history())
		close(store.gate)
		require.Equal(t, "commit [1], close", in.history())
		require.NoError(t, c.Close())
	})
	bubble(t, "a barrier that was overtaken is not sent", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet()), WithTimeout(time.Second)))
		src := NewSource(c, "src", checkpointtest.NewSliceInput(make([]int, 2*Buffer)))
		require.NoError(t, c.Start())
		synctest.Wait() // Out is full
		for range 2 {
			_, err := c.Trigger(t.Context())
			require.ErrorContains(t, err, `no report from "src"`)
		}
		all := texts(src.Out())
		require.NotContains(t, all, "barrier 1 (periodic)")
		require.Contains(t, all, "barrier 2 (periodic)")
		require.Contains(t, all, "barrier 4 (drain)")
		require.NoError(t, c.Wait())
		require.Zero(t, src.Kept())
		require.NoError(t, c.Close())
	})
}

func TestSink(t *testing.T) {
	start := func(t *testing.T, out *recorder) (*Coordinator, *Sink[string]) {
		t.Helper()
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		s := NewSink(c, "sink", out)
		require.NoError(t, c.Start())
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c, s
	}
	bubble(t, "publishes when the checkpoint is complete, and not before", func(t *testing.T) {
		store := &badStore{MemoryStore: checkpointtest.NewMemoryStore(), gate: make(chan struct{}, 9)}
		c := must(NewCoordinator(store, WithLogger(quiet())))
		out := newRecorder()
		s := NewSink(c, "sink", out)
		src := &fake{name: "src"}
		c.Host().Register("src", src)
		require.NoError(t, c.Start())
		s.In() <- "a"
		s.In() <- queue.Watermark{}
		go func() { must(c.Trigger(context.Background())) }()
		synctest.Wait()
		s.In() <- src.barrier()
		require.Equal(t, "fresh, write a, prepare", out.history())
		store.gate <- struct{}{}
		require.Equal(t, "fresh, write a, prepare, commit [7]", out.history())
		store.fail = true
		store.gate <- struct{}{}
		go func() { _, _ = c.Trigger(context.Background()) }()
		synctest.Wait()
		s.In() <- src.barrier()
		require.True(t, strings.HasSuffix(out.history(), "prepare"), "aborted: covered by the next")
		store.fail = false
		c.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		before := out.history()
		s.In() <- src.barrier() // the marker
		require.Equal(t, before, out.history(), "it has no state")
		s.In() <- src.barrier()
		close(s.In())
		synctest.Wait()
		go c.Host().Fail("src", errTest) // the checkpoint is being stored
		require.True(t, strings.HasSuffix(out.history(), "prepare"), "not closed before it is known")
		store.gate <- struct{}{}
		s.AwaitCompletion()
		require.True(t, strings.HasSuffix(out.history(), "prepare, commit [7], close"), out.history())
		require.NoError(t, c.Close())
	})
	bubble(t, "without a final barrier nothing is published", func(t *testing.T) {
		out := newRecorder()
		c, s := start(t, out)
		s.In() <- "a"
		close(s.In())
		s.AwaitCompletion()
		require.ErrorContains(t, s.Err(), "without a final barrier")
		require.ErrorContains(t, c.Wait(), "without a final barrier")
		require.Equal(t, "fresh, write a, close", out.history())
	})
	bubble(t, "nothing is committed after a failure or an abort", func(t *testing.T) {
		out := newRecorder()
		c, s := start(t, out)
		s.In() <- participant.NewBarrier(1, participant.Periodic, nil)
		s.In() <- participant.NewBarrier(2, participant.Periodic, nil)
		synctest.Wait()
		s.Aborted(1, errTest)
		require.EqualValues(t, 2, s.Kept(), "the next one covers it")
		s.Completed(1)
		out.fail["write"] = errTest
		s.In() <- "a"
		require.ErrorIs(t, c.Wait(), errTest)
		s.Completed(2)
		require.NotContains(t, out.history(), "commit")
		close(s.In())
		s.AwaitCompletion()
	})
	bubble(t, "states of barriers that come after their checkpoints were aborted do not add up (law W3)", func(t *testing.T) {
		out := newRecorder()
		_, s := start(t, out)
		for id := range uint64(3) {
			s.Aborted(id+1, errTest)
		}
		for id := range uint64(4) {
			s.In() <- participant.NewBarrier(id+1, participant.Periodic, nil)
		}
		synctest.Wait()
		require.EqualValues(t, 4, s.Kept())
		s.Completed(4)
		require.Zero(t, s.Kept())
		require.True(t, strings.HasSuffix(out.history(), "prepare, commit [7]"), out.history())
		close(s.In())
		s.AwaitCompletion()
	})
	for _, method := range []string{"write", "prepare", "commit"} {
		bubble(t, method+" fails", func(t *testing.T) {
			out := newRecorder()
			out.fail[method] = errTest
			c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
			src := NewSource(c, "src", checkpointtest.NewSliceInput([]string{"a"}))
			s := NewSink(c, "sink", out)
			require.NoError(t, c.Start())
			flow.DoStream(src, flowTo{s})
			require.ErrorIs(t, c.Wait(), errTest, "also on the final checkpoint")
			s.AwaitCompletion()
			require.ErrorIs(t, s.Err(), errTest)
			require.NoError(t, c.Close())
		})
	}
	bubble(t, "an output that has nothing to do at a fresh start", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		out := newRecorder()
		src := NewSource(c, "src", checkpointtest.NewSliceInput([]string{"a"}))
		s := NewSink(c, "sink", Output[string](struct{ Output[string] }{out}))
		require.NoError(t, c.Start())
		flow.DoStream(src, flowTo{s})
		require.NoError(t, c.Wait())
		require.Equal(t, "write a, prepare, commit [7], close", out.history())
		require.NoError(t, c.Close())
	})
	bubble(t, "a fresh start that is refused", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		out := newRecorder()
		out.fail["fresh"] = errTest
		close(NewSink(c, "sink", out).In())
		require.ErrorIs(t, c.Start(), errTest)
		require.Equal(t, "fresh, close", out.history())
		require.NoError(t, c.Close())
	})
	bubble(t, "wrong type", func(t *testing.T) {
		c, s := start(t, newRecorder())
		s.In() <- 5
		require.ErrorContains(t, c.Wait(), "got an element of type int, want string")
		close(s.In())
		s.AwaitCompletion()
	})
	bubble(t, "a sink that cannot start touches nothing", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := startWith(t, store, nil, &fake{name: "old"})
		must(c.Trigger(t.Context()))
		c = must(NewCoordinator(store.Reopen()))
		for _, name := range []string{"new", ""} {
			out := newRecorder()
			s := NewSink(c, name, out)
			require.Empty(t, out.history(), "it must not undo what was published")
			close(s.In())
		}
		require.Error(t, c.Start())
		late := newRecorder()
		close(NewSink(c, "late", late).In())
		require.Equal(t, "close", late.history())
		require.NoError(t, c.Close())
	})
}

// Inputs and outputs may reuse the memory of a position and of a state.
func TestPositionsAndStatesAreCopied(t *testing.T) {
	bubble(t, "reused", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		gated := &badStore{MemoryStore: store, gate: make(chan struct{})}
		c := must(NewCoordinator(gated, WithLogger(quiet())))
		values := make(chan string)
		buffer := make([]byte, 1)
		in := &reusingInput{Input: checkpointtest.NewChannelInput(values), buffer: buffer}
		src := NewSource(c, "src", in)
		out := &reusingOutput{recorder: newRecorder(), buffer: buffer}
		sink := NewSink(c, "sink", Output[string](out))
		require.NoError(t, c.Start())
		go flow.DoStream(src, flowTo{sink})
		values <- "a"
		taken := make(chan error, 1)
		go func() { _, err := c.Trigger(t.Context()); taken <- err }()
		synctest.Wait() // all have reported
		buffer[0] = 0xff
		gated.gate <- struct{}{}
		require.NoError(t, <-taken)
		s := must(store.Load(t.Context(), 1))
		require.Equal(t, []byte{1}, s.States["src"].Bytes())
		require.Equal(t, []byte{7}, s.States["sink"].Bytes())
		require.Contains(t, out.history(), "commit [7]")
		require.Equal(t, []byte{1}, in.committed)
		close(gated.gate)
		close(values)
		require.NoError(t, c.Wait())
		require.NoError(t, c.Close())
	})
}

// reusingInput has one buffer for its positions.
type reusingInput struct {
	Input[string]
	buffer, committed []byte
}

func (in *reusingInput) Wait(ctx context.Context) error { return in.Input.(Waiter).Wait(ctx) }

func (in *reusingInput) Position() []byte {
	copy(in.buffer, in.Input.Position())
	return in.buffer
}

func (in *reusingInput) Commit(_ context.Context, position []byte) error {
	in.committed = bytes.Clone(position)
	return nil
}

// reusingOutput has one buffer for its states.
type reusingOutput struct {
	*recorder
	buffer []byte
}

func (o *reusingOutput) Prepare(context.Context) ([]byte, error) {
	o.buffer[0] = 7
	return o.buffer, nil
}

// flowTo makes a sink the end of flow.DoStream.
type flowTo struct{ *Sink[string] }

func (f flowTo) Out() <-chan any               { return nil }
func (f flowTo) Via(streams.Flow) streams.Flow { return nil }
func (f flowTo) To(streams.Sink)               {}

// readAll reads an input to its end, with the position and line of each element.
func readAll[T any](t *testing.T, in Input[T]) (values []T, positions [][]byte) {
	t.Helper()
	for {
		positions = append(positions, in.Position())
		v, err := in.Next()
		if err == io.EOF {
			return values, positions
		}
		require.NoError(t, err)
		values = append(values, v)
	}
}

// A drained job continues when its input has grown, even if the last line had no line
// end.
func TestLinesOfAFileThatGrows(t *testing.T) {
	for _, tt := range []struct{ was, added, want string }{
		{"a\nb", "\nc\n", "c 3"},
		{"a\nb", "\r\nc", "c 3"},
		{"a\nb\n", "c\n", "c 3"},
		{"a\nb\n", "\nc\n", " 3, c 4"},
		{"a\nb", "\n\nc", " 3, c 4"},
		{"a\nb", "\n", ""},
		{"a\nb\r", "\nc", "c 3"},
		{"", "\nc", " 1, c 2"},
	} {
		path := t.TempDir() + "/in"
		require.NoError(t, os.WriteFile(path, []byte(tt.was), 0o600))
		in := must(files.OpenLines(path))
		_, positions := readAll(t, in)
		require.NoError(t, in.Close())
		require.NoError(t, os.WriteFile(path, []byte(tt.was+tt.added), 0o600))
		in = must(files.OpenLines(path))
		require.NoError(t, in.Seek(positions[len(positions)-1]))
		var got []string
		for {
			line, err := in.Next()
			if err != nil {
				require.Equal(t, io.EOF, err)
				break
			}
			got = append(got, fmt.Sprint(line, " ", in.Line()))
		}
		require.Equal(t, tt.want, strings.Join(got, ", "), "%q and %q", tt.was, tt.added)
		again := must(files.OpenLines(path))
		require.NoError(t, again.Seek(in.Position()))
		_, err := again.Next()
		require.Equal(t, io.EOF, err)
		require.NoError(t, again.Close())
		require.NoError(t, in.Close())
	}
}

// The same for records.
func TestRecordsOfAFileThatGrows(t *testing.T) {
	for _, tt := range []struct{ was, added, want string }{
		{"h\na\nb", "\nc\n", "[c] 4"},
		{"h\na\nb", "\r\nc", "[c] 4"},
		{"h\na\nb\n", "c\nd\n", "[c] 4, [d] 5"},
		{"h\na\n\"b\nb\"", "\n\nc\nd", "[c] 6, [d] 7"},
		{"h", "\nc\n", "[c] 2"},
	} {
		path := t.TempDir() + "/in"
		require.NoError(t, os.WriteFile(path, []byte(tt.was), 0o600))
		in := must(files.OpenCSV(path))
		_, positions := readAll(t, in)
		require.NoError(t, in.Close())
		require.NoError(t, os.WriteFile(path, []byte(tt.was+tt.added), 0o600))
		in = must(files.OpenCSV(path))
		last := positions[len(positions)-1]
		require.NoError(t, in.Seek(last))
		require.Equal(t, last, in.Position())
		var got []string
		for {
			record, err := in.Next()
			if err != nil {
				require.Equal(t, io.EOF, err)
				break
			}
			got = append(got, fmt.Sprint(record, " ", in.Line()))
		}
		require.Equal(t, tt.want, strings.Join(got, ", "), "%q and %q", tt.was, tt.added)
		require.NoError(t, in.Close())
	}
}

// If a line was read without a line end, a line end that is appended later is not an
// empty line.
func TestLinesOfAFileThatGrowsWhileItIsRead(t *testing.T) {
	for _, end := range []string{"\n", "\r\n"} {
		path := filepath.Join(t.TempDir(), "lines")
		grow := func(text string) {
			f := must(os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))
			must(f.WriteString(text))
			require.NoError(t, f.Close())
		}
		next := func(in *files.LineInput, want string) {
			t.Helper()
			line, err := in.Next()
			require.NoError(t, err)
			require.Equal(t, want, line)
		}
		atEnd := func(in *files.LineInput) {
			t.Helper()
			_, err := in.Next()
			require.Equal(t, io.EOF, err)
		}
		grow("a" + end + "b")
		in := must(files.OpenLines(path))
		next(in, "a")
		next(in, "b")
		before := in.Position()
		again := must(files.OpenLines(path))
		require.NoError(t, again.Seek(before)) // and the file grows before Next
		atEnd(in)
		grow(end + "c" + end + end)
		for _, in := range []*files.LineInput{in, again} {
			next(in, "c")
			next(in, "")
			atEnd(in)
			require.Equal(t, 4, in.Line())
		}
		require.Equal(t, in.Position(), again.Position())
		third := must(files.OpenLines(path))
		require.NoError(t, third.Seek(in.Position()))
		grow("d")
		next(third, "d")
		for _, in := range []*files.LineInput{in, again, third} {
			require.NoError(t, in.Close())
		}
	}
}

// An error that wraps io.EOF is an error: the input has not ended.
func TestInputThatFailsWithAWrappedEOF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		source := NewSource[int](c, "source", cutOff{checkpointtest.NewSliceInput([]int{1, 2})})
		require.NoError(t, c.Start())
		require.Equal(t, []string{"1", "2"}, texts(source.Out()))
		require.ErrorIs(t, c.Wait(), io.EOF)
		require.ErrorContains(t, c.Wait(), "the server hung up")
		require.NoError(t, c.Close())
	})
}

// cutOff is an input whose connection is cut at its end.
type cutOff struct{ Input[int] }

func (in cutOff) Next() (int, error) {
	v, err := in.Input.Next()
	if err != nil {
		err = fmt.Errorf("the server hung up: %w", err)
	}
	return v, err
}

// When Close has returned, the sink does not use its output: another run may have it.
func TestSinkWritesNothingAfterClose(t *testing.T) {
	c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
	out := &slowOutput{recorder: newRecorder(), gate: make(chan struct{})}
	sink := NewSink[string](c, "sink", out)
	require.NoError(t, c.Start())
	sink.In() <- "a"
	sink.In() <- "b"
	out.gate <- struct{}{} // a is being written
	closed := make(chan error)
	go func() { closed <- c.Close() }()
	<-c.Host().Ended()
	close(out.gate)
	require.NoError(t, <-closed)
	require.False(t, out.writing.Load(), "it has waited for a")
	sink.In() <- "c"
	sink.In() <- participant.NewBarrier(1, participant.Periodic, c.Reporter())
	close(sink.In())
	sink.AwaitCompletion()
	require.Equal(t, []string{"fresh", "write a", "close"}, out.calls)
}

// Close gives up if a Write hangs, perhaps because the output waits for the caller of
// Close. The store is closed when the Write has returned.
func TestCloseWhileAWriteHangs(t *testing.T) {
	bubble(t, "hangs", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := must(NewCoordinator(store))
		out := &slowOutput{recorder: newRecorder(), gate: make(chan struct{})}
		sink := NewSink[string](c, "sink", out)
		require.NoError(t, c.Start())
		sink.In() <- "a"
		out.gate <- struct{}{} // a is being written
		began := time.Now()
		require.ErrorContains(t, c.Close(), `still writing to the output of "sink" after 10s`)
		require.Equal(t, 2*ClosePatience, time.Since(began))
		_, err := store.List(t.Context())
		require.NoError(t, err, "no other run may have it yet")
		close(out.gate)
		close(sink.In())
		sink.AwaitCompletion()
		synctest.Wait()
		_, err = store.List(t.Context())
		require.ErrorIs(t, err, ErrClosed)
	})
}

// When Close returns, the input is closed: another run may open it.
func TestCloseWaitsForTheInput(t *testing.T) {
	for _, started := range []bool{true, false} {
		bubble(t, fmt.Sprintf("started=%v", started), func(t *testing.T) {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
			in := &leaving{Input: checkpointtest.NewChannelInput(make(chan int))}
			source := NewSource(c, "source", in)
			if started {
				require.NoError(t, c.Start())
			}
			require.NoError(t, c.Close())
			require.True(t, in.closed)
			for range source.Out() {
				t.Error("an element")
			}
		})
	}
	bubble(t, "hangs", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		in := &leaving{Input: checkpointtest.NewChannelInput(make(chan int)), takes: time.Hour}
		source := NewSource(c, "source", in)
		require.NoError(t, c.Start())
		require.ErrorContains(t, c.Close(), `still reading the input of "source" after 10s`)
		for range source.Out() {
			t.Error("an element")
		}
		time.Sleep(in.takes)
	})
}

// leaving is an input whose Close is slow.
type leaving struct {
	Input[int]
	takes  time.Duration
	closed bool
}

func (in *leaving) Wait(ctx context.Context) error { return in.Input.(Waiter).Wait(ctx) }

func (in *leaving) Close() error {
	time.Sleep(max(in.takes, time.Second))
	in.closed = true
	return in.Input.Close()
}

// slowOutput blocks in Write until it has received twice from its gate.
type slowOutput struct {
	*recorder
	gate    chan struct{}
	writing atomic.Bool
}

func (o *slowOutput) Write(ctx context.Context, v string) error {
	o.writing.Store(true)
	<-o.gate // Write has begun
	<-o.gate // Write may return
	time.Sleep(10 * time.Millisecond)
	defer o.writing.Store(false)
	return o.recorder.Write(ctx, v)
}

func TestInputsResumeAtEveryPosition(t *testing.T) {
	path := t.TempDir() + "/in"
	for _, content := range []string{"", "a", "a\n", "a\n\nb", "a\r\nb\r\n", "\n", "x,y\r\n1,\"2\r\n3\n\"\r\n\r\n4,5", "h,i\n\"a\nb\",c\nd,e\n\nf,g\n"} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		lines := must(files.OpenLines(path))
		all, positions := readAll(t, lines)
		for i, p := range positions {
			in := must(files.OpenLines(path))
			require.NoError(t, in.Seek(p))
			require.Equal(t, p, in.Position())
			rest, _ := readAll(t, in)
			require.True(t, slices.Equal(all[i:], rest), "%q", content)
			require.Equal(t, lines.Line(), in.Line())
			require.NoError(t, in.Close())
		}
		require.NoError(t, lines.Close())
		if !strings.Contains(content, ",") {
			continue
		}
		records := must(files.OpenCSV(path))
		var at []int
		var csvAll [][]string
		csvPositions := [][]byte{records.Position()}
		for {
			v, err := records.Next()
			if err != nil {
				require.Equal(t, io.EOF, err)
				break
			}
			csvAll, at, csvPositions = append(csvAll, v), append(at, records.Line()), append(csvPositions, records.Position())
		}
		for i, p := range csvPositions {
			in := must(files.OpenCSV(path))
			require.NoError(t, in.Seek(p))
			require.Equal(t, p, in.Position(), "a barrier before the first record")
			for j := i; j < len(csvAll); j++ {
				require.Equal(t, csvAll[j], must(in.Next()))
				require.Equal(t, at[j], in.Line(), "%q record %d from %d", content, j, i)
			}
			_, err := in.Next()
			require.Equal(t, io.EOF, err)
			_ = in.Position()
			require.NoError(t, in.Close())
		}
		require.NoError(t, os.Truncate(path, 1))
		last := csvPositions[len(csvPositions)-1]
		require.ErrorContains(t, records.Seek(last), "is it another file?")
		require.ErrorContains(t, records.Seek([]byte{1}), "damaged file position")
		require.NoError(t, records.Close())
		in := must(files.OpenLines(path))
		require.ErrorContains(t, in.Seek(last), "is it another file?")
		require.NoError(t, in.Close())
	}
	_, err := files.OpenLines(path + "none")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = files.OpenCSV(path + "none")
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, p := range [][]byte{nil, {}, {4}, {0, 0}, slices.Repeat([]byte{0xff}, 11)} {
		require.Error(t, checkpointtest.NewSliceInput([]int{1, 2, 3}).Seek(p))
	}
	ch := make(chan int, 3)
	ch <- 1
	close(ch)
	require.ErrorContains(t, checkpointtest.NewChannelInput(ch).Seek([]byte{2}), "ended after 1 elements")
	require.Error(t, checkpointtest.NewChannelInput(ch).Seek(nil))
}

// closedOutput is an output that records its Close.
type closedOutput struct {
	Output[string]
	closed bool
}

func (o *closedOutput) Close() error { o.closed = true; return nil }

// If a pipeline is not started because another part has failed, the input of its sink may
// never be closed.
func TestSinkThatIsNeverStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewCoordinator(checkpointtest.NewMemoryStore())
		require.NoError(t, err)
		output := &closedOutput{}
		sink := NewSink(c, "sink", Output[string](output))
		require.NoError(t, c.Close())
		sink.AwaitCompletion()
		require.True(t, output.closed)
	})
}
