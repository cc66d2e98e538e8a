package flow_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/message"
)

// A sink calls its function for each value and then acknowledges the message.
func TestSink(t *testing.T) {
	l, written := ledger{}, []string(nil)
	sink := flow.NewSink(func(s string) error {
		require.Empty(t, l[s], "the message is settled when it is written")
		written = append(written, s)
		return nil
	})
	first := flow.NewMap(func(s string) string { return s })
	go func() {
		for _, v := range []any{"plain", mark(1), l.newMessage("a"), l.newMessage("b")} {
			first.In() <- v
		}
		close(first.In())
	}()
	first.To(sink)
	require.Equal(t, []string{"plain", "a", "b"}, written)
	require.Equal(t, ledger{"a": {"done"}, "b": {"done"}}, l)
	require.NoError(t, sink.Err())
	require.EqualValues(t, 3, sink.Written())
}

// A function typed on messages settles them itself.
func TestSink_FunctionOnMessages(t *testing.T) {
	l := ledger{}
	sink := flow.NewSink(func(m message.Message[string]) error { m.Release(); return nil })
	sink.In() <- l.newMessage("a")
	close(sink.In())
	sink.AwaitCompletion()
	require.Equal(t, ledger{"a": {"released"}}, l)
}

// Law D1: a sink that fails releases the message in hand and later messages, and ends the
// upstream steps.
func TestSinkWithName_Fails(t *testing.T) {
	full := errors.New("disk full")
	for name, write := range map[string]func(s string) error{
		"disk full": func(s string) error { return map[string]error{"bad": full}[s] },
		"panic in user code: disk full": func(s string) error {
			if s == "bad" {
				panic(full)
			}
			return nil
		},
	} {
		l := ledger{}
		sink := flow.NewSink(write, flow.WithName("store"))
		first := flow.NewMap(func(s string) string { return s })
		go func() {
			for _, id := range []string{"good", "bad", "late", "later"} {
				first.In() <- l.newMessage(id)
			}
			close(first.In())
		}()
		first.To(sink)
		require.ErrorIs(t, sink.Err(), full)
		require.ErrorContains(t, sink.Err(), "flow: Sink: "+name)
		require.Equal(t, ledger{"good": {"done"}, "bad": {"released"}, "late": {"released"}, "later": {"released"}}, l)
		require.EqualValues(t, 1, sink.Written())
		require.LessOrEqual(t, sink.Discarded(), int64(2), "the flow may have discarded them")
		if err := first.Err(); err != nil { // it may have ended before
			require.ErrorContains(t, err, `a later step has failed: sink "store": flow: Sink: `)
		}
	}
}

// The sink of a failed stream reports the failure.
func TestSink_UpstreamFails(t *testing.T) {
	sink := flow.NewSink(func(int) error { return nil })
	f := flow.NewMap(func(n int) int { return 1 / n })
	f.In() <- 0
	close(f.In())
	f.To(sink)
	require.ErrorContains(t, sink.Err(), "flow: Sink: upstream: flow: Map: panic in user code: runtime error: integer divide by zero")
}

// Law C2: a sink refuses streams with checkpoints.
func TestSinkAwaitCompletion_Checkpoints(t *testing.T) {
	r := run{make(chan error, 1)}
	sink := flow.NewSink(func(int) error { return nil })
	sink.In() <- participant.NewBarrier(1, participant.Periodic, r)
	close(sink.In())
	sink.AwaitCompletion()
	require.ErrorContains(t, <-r.failed, "use checkpoint.NewSink")

	f, refused := flow.NewMap(same), flow.NewSink(func(int) error { return nil })
	defer close(refused.In())
	newSource(t).Via(f)
	defer func() { require.Contains(t, recover(), "use checkpoint.NewSink") }()
	f.To(refused)
}

func TestOptions_Arguments(t *testing.T) {
	require.PanicsWithValue(t, "flow: NewSink: nil function", func() { flow.NewSink[int](nil) })
	require.PanicsWithValue(t, "flow: WithUpstreamCancel: nil function", func() { flow.WithUpstreamCancel(nil) })
	require.PanicsWithValue(t, "flow: option 0 is nil", func() { flow.NewMap(same, nil) })
}
