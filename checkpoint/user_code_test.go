package checkpoint_test

import (
	"context"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/queue"
)

// waysToBreak has the ways in which user code fails to return, with the text of the
// error.
var waysToBreak = map[string]struct {
	do   func()
	text string
}{
	"panic":  {func() { panic("boom") }, "panic in user code: boom"},
	"goexit": {runtime.Goexit, "panic in user code: runtime.Goexit was called"},
}

// forEachWay runs body for a panic and for runtime.Goexit.
func forEachWay(t *testing.T, name string, body func(t *testing.T, do func(), text string)) {
	t.Helper()
	for way, w := range waysToBreak {
		bubble(t, name+"/"+way, func(t *testing.T) { body(t, w.do, w.text) })
	}
}

// wholeInput is a recorder of all methods of an Input.
type wholeInput struct{ *recorder }

func (in wholeInput) Next() (string, error)      { _ = in.note("next"); return in.recorder.Next() }
func (in wholeInput) Position() []byte           { _ = in.note("position"); return in.recorder.Position() }
func (in wholeInput) Seek(p []byte) error        { _ = in.note("seek"); return in.recorder.Seek(p) }
func (in wholeInput) Wait(context.Context) error { return in.note("wait") }

// requirePanicError requires that err reports broken user code, with its stack.
func requirePanicError(t *testing.T, err error, text string) {
	t.Helper()
	var p *guard.PanicError
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), "recorder")
	require.ErrorContains(t, err, text)
}

// A6: a panic and runtime.Goexit in a method of an input are errors of the run.
func TestInputThatBreaks(t *testing.T) {
	for _, method := range []string{"next", "wait", "position", "commit"} {
		forEachWay(t, method, func(t *testing.T, do func(), text string) {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
			in := newRecorder("a", "b")
			in.do[method] = do
			src := NewSource[string](c, "src", wholeInput{in})
			sink := NewSink[string](c, "sink", newRecorder())
			require.NoError(t, c.Start())
			flow.DoStream(src, flowTo{sink})
			err := c.Wait()
			requirePanicError(t, err, text)
			require.ErrorContains(t, err, `checkpoint: "src" failed: input: `)
			sink.AwaitCompletion()
			require.NoError(t, c.Close())
		})
	}
	forEachWay(t, "seek", func(t *testing.T, do func(), text string) {
		store := checkpointtest.NewMemoryStore()
		must(startWith(t, store, nil, &fake{name: "src"}).Trigger(t.Context()))
		c := must(NewCoordinator(store.Reopen()))
		in := newRecorder()
		in.do["seek"] = do
		src := NewSource[string](c, "src", wholeInput{in})
		requirePanicError(t, c.Start(), text)
		require.Empty(t, texts(src.Out()))
		require.NoError(t, c.Close())
	})
	forEachWay(t, "close", func(t *testing.T, do func(), text string) {
		log := make(logLines, 10)
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(slog.New(slog.NewTextHandler(log, nil)))))
		in := newRecorder()
		in.do["close"] = do
		src := NewSource[string](c, "src", in)
		require.NoError(t, c.Start())
		texts(src.Out())
		require.NoError(t, c.Wait(), "the run is over")
		require.Regexp(t, "close of an input.* source=src .*"+text, <-log)
		require.NoError(t, c.Close())
	})
}

// A6: a panic and runtime.Goexit in a method of an output are errors of the run, and do
// not block upstream.
func TestOutputThatBreaks(t *testing.T) {
	for _, method := range []string{"write", "prepare", "commit", "close"} {
		forEachWay(t, method, func(t *testing.T, do func(), text string) {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
			src := &fake{name: "src"}
			c.Host().Register("src", src)
			out := newRecorder()
			out.do[method] = do
			sink := NewSink[string](c, "sink", out)
			require.NoError(t, c.Start())
			sink.In() <- "a"
			go func() { _, _ = c.Trigger(context.Background()) }()
			synctest.Wait()
			sink.In() <- src.barrier()
			synctest.Wait()
			for range 3 * Buffer {
				sink.In() <- "b"
			}
			close(sink.In())
			sink.AwaitCompletion()
			if method == "close" {
				require.ErrorContains(t, c.Wait(), "without a final barrier")
			} else {
				requirePanicError(t, c.Wait(), text)
				require.ErrorContains(t, c.Wait(), `checkpoint: "sink" failed: `+method)
				requirePanicError(t, sink.Err(), text)
			}
			require.NoError(t, c.Close())
		})
	}
	for _, method := range []string{"fresh", "restore"} {
		forEachWay(t, method, func(t *testing.T, do func(), text string) {
			store := checkpointtest.NewMemoryStore()
			if method == "restore" {
				must(startWith(t, store, nil, &fake{name: "sink"}).Trigger(t.Context()))
				store = store.Reopen()
			}
			c := must(NewCoordinator(store))
			out := newRecorder()
			out.do[method] = do
			sink := NewSink[string](c, "sink", out)
			requirePanicError(t, c.Start(), text)
			close(sink.In())
			sink.AwaitCompletion()
			require.NoError(t, c.Close())
		})
	}
}

// A6: a panic or runtime.Goexit in a participant or a store ends the run, and does not
// block it.
func TestParticipantThatBreaks(t *testing.T) {
	forEachWay(t, "pending", func(t *testing.T, do func(), text string) {
		a := &fake{name: "a", onPending: do}
		c := startWith(t, checkpointtest.NewMemoryStore(), []Option{WithInterval(time.Second)}, a)
		require.ErrorContains(t, c.Wait(), `checkpoint: "a" failed: checkpoint: `+text)
	})
	forEachWay(t, "completed", func(t *testing.T, do func(), text string) {
		a := &fake{name: "a", onCompleted: do}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		_, _ = c.Trigger(t.Context())
		require.ErrorContains(t, c.Wait(), `checkpoint: "a" failed: checkpoint: `+text)
	})
}

// A6: a panic or runtime.Goexit in the function of a flow ends the run with that error,
// even before the first barrier has passed.
func TestFlowThatBreaks(t *testing.T) {
	makers := map[string]func(do func()) *weirflow.Flow{
		"Map": func(do func()) *weirflow.Flow {
			return weirflow.NewMap(func(v string) string { breakAt(v, do); return v })
		},
		"Filter": func(do func()) *weirflow.Flow {
			return weirflow.NewFilter(func(v string) bool { breakAt(v, do); return true })
		},
		"FlatMap": func(do func()) *weirflow.Flow {
			return weirflow.NewFlatMap(func(v string) []string { breakAt(v, do); return []string{v} })
		},
	}
	for name, newFlow := range makers {
		forEachWay(t, name, func(t *testing.T, do func(), text string) {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
			values := make([]string, 9*Buffer)
			values[5] = "broken"
			src := NewSource(c, "src", checkpointtest.NewSliceInput(values))
			out := newRecorder()
			sink := NewSink[string](c, "sink", out)
			require.NoError(t, c.Start())
			broken := newFlow(do)
			pass := weirflow.NewMap(func(v string) string { return v })
			src.Via(flow.NewPassThrough()).Via(broken).Via(pass).To(sink)
			err := c.Wait()
			var p *guard.PanicError
			require.ErrorAs(t, err, &p)
			require.Contains(t, string(p.Stack), "breakAt")
			require.ErrorContains(t, broken.Err(), "flow: "+name+": "+text+" (at user_code_test.go:")
			require.EqualError(t, err, `checkpoint: "sink" failed: `+broken.Err().Error())
			require.NotContains(t, out.history(), "prepare")
			require.NoError(t, c.Close())
		})
	}
	forEachWay(t, "the coordinator hears of it where no sink of weir does", func(t *testing.T, do func(), text string) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		f := weirflow.NewMap(func(v string) string { breakAt(v, do); return v })
		f.In() <- participant.NewBarrier(1, participant.Periodic, c.Reporter())
		f.In() <- "broken"
		close(f.In())
		f.To(extension.NewIgnoreSink())
		require.ErrorContains(t, c.Wait(), `checkpoint: "Map" failed: flow: Map: `+text)
		require.NoError(t, c.Close())
	})
	bubble(t, "a wrong type", func(t *testing.T) {
		f := weirflow.NewMap(func(v string) string { return v })
		f.In() <- "a"
		f.In() <- queue.Watermark{}
		f.In() <- 5
		f.In() <- "b"
		close(f.In())
		all := texts(f.Out())
		require.Len(t, all, 2)
		require.EqualError(t, f.Err(), "flow: Map: got an element of type int, want string")
	})
	bubble(t, "a step of go-streams behind it ends, and the sink behind that does not take it for a clean end", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		src := NewSource(c, "src", checkpointtest.NewSliceInput([]string{"a"}))
		sink := NewSink[string](c, "sink", newRecorder())
		require.NoError(t, c.Start())
		src.Via(weirflow.NewMap(func(string) string { panic("boom") })).Via(flow.NewPassThrough()).To(sink)
		require.EqualError(t, c.Wait(), `checkpoint: "sink" failed: the input ended without a final barrier`)
		require.NoError(t, c.Close())
	})
}

func breakAt(v string, do func()) {
	if v == "broken" {
		do()
	}
}
