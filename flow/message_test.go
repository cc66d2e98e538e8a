package flow_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/queue"
)

// ledger records how messages were settled.
type ledger map[string][]string

func (l ledger) newMessage(id string) message.Message[string] { return newMessage(l, id, id) }

func newMessage[T any](l ledger, id string, v T) message.Message[T] {
	return message.New(v, &message.Meta{ID: id}, func(v message.Settlement) {
		ledgers.Lock()
		defer ledgers.Unlock()
		l[id] = append(l[id], v.String())
	})
}

var ledgers sync.Mutex // several flows may settle at once

// through returns the results of a sequence of flows.
func through(first, last *flow.Flow, elements ...any) (out []any) {
	go func() {
		for _, v := range elements {
			first.In() <- v
		}
		close(first.In())
	}()
	for v := range last.Out() {
		out = append(out, v)
	}
	return out
}

// D1: the result of a message is acknowledged in its place, and a filtered message at
// once.
func TestMessagesAreCarriedOn(t *testing.T) {
	l, w := ledger{}, queue.Watermark{Timestamp: time.Unix(1, 0)}
	first := flow.NewMap(func(s string) int { return len(s) })
	last := flow.NewFlatMap(func(n int) []float64 { return make([]float64, n-1) })
	first.Via(flow.NewFilter(func(n int) bool { return n < 4 })).Via(last)
	out := through(first, last, l.newMessage("a"), w, l.newMessage("bb"), l.newMessage("ccc"), l.newMessage("dddd"), "eee")
	require.Equal(t, ledger{"a": {"done"}, "dddd": {"done"}}, l, "one with no results, one filtered out")
	require.Len(t, out, 6)
	require.Equal(t, []any{w, 0.0, 0.0}, []any{out[0], out[4], out[5]})

	one := out[1].(message.Message[float64])
	require.Equal(t, "bb", one.Meta().ID)
	parts := []message.Message[float64]{out[2].(message.Message[float64]), out[3].(message.Message[float64])}
	require.Equal(t, "ccc#2", parts[1].Meta().ID)
	one.Nack(time.Second)
	parts[0].Ack()
	require.Empty(t, l["ccc"])
	parts[1].Ack()
	require.Equal(t, ledger{"a": {"done"}, "dddd": {"done"}, "bb": {"failed for 1s"}, "ccc": {"done"}}, l)
}

// Messages are recognised before the type test, for all types.
func TestMessagesOfAnyType(t *testing.T) {
	l := ledger{}
	f := flow.NewMap(func(v any) string { return fmt.Sprintf("%T %v", v, v) })
	out := through(f, f, l.newMessage("a"), newMessage(l, "b", 5), newMessage[error](l, "c", nil), newMessage[any](l, "d", "x"), nil)
	var got []string
	for _, v := range out[:4] {
		got = append(got, v.(message.Message[string]).Value)
	}
	require.Equal(t, []string{"string a", "int 5", "<nil> <nil>", "string x"}, got)
	require.Equal(t, "<nil> <nil>", out[4])

	other := flow.NewMap(func(s string) string { return s })
	out = through(other, other, newMessage[any](l, "e", "x"), message.Message[string]{Value: "y"})
	require.Equal(t, "x", out[0].(message.Message[string]).Value)
	require.Equal(t, message.Message[string]{Value: "y"}, out[1])
	require.Empty(t, l)
}

// A function typed on messages receives them with their history, and passes the
// acknowledgement on itself.
func TestMapFilterFlatMap_FunctionsOnMessages(t *testing.T) {
	type messages = message.Message[string]
	l := ledger{}
	first := flow.NewMap(func(m messages) message.Message[int] { return message.With(m, len(m.Meta().ID)) })
	out := through(first, first, l.newMessage("abc"))
	require.Equal(t, 3, out[0].(message.Message[int]).Value)

	filter := flow.NewFilter(func(m messages) bool { return m.Meta().ID != "drop" })
	out = through(filter, filter, l.newMessage("drop"), l.newMessage("keep"))
	require.Len(t, out, 1)
	require.Equal(t, ledger{"drop": {"done"}}, l)

	var batch []messages // kept without an acknowledgement
	batches := flow.NewFlatMap(func(m messages) []string { batch = append(batch, m); return nil })
	require.Empty(t, through(batches, batches, l.newMessage("x"), l.newMessage("y")))
	require.Len(t, batch, 2)
	require.Equal(t, ledger{"drop": {"done"}}, l)

	source := flow.NewMap(func(s string) messages { return l.newMessage(s) }) // makes messages from values
	require.Equal(t, "s", through(source, source, "s")[0].(messages).Value)
}

// D1: a flow that fails releases the message in hand and the messages that it discards.
// Emitted messages belong to downstream.
func TestFailingFlowNacks(t *testing.T) {
	barrier := participant.NewBarrier(1, participant.Periodic, nil)
	for name, c := range map[string]struct {
		flow    func() *flow.Flow
		trouble func(l ledger) any
		want    string
	}{
		"panic": {
			func() *flow.Flow { return flow.NewMap(func(s string) int { panic("boom: " + s) }) },
			func(l ledger) any { return l.newMessage("2") }, "panic in user code: boom: 2",
		},
		"type": {func() *flow.Flow { return flow.NewFilter(func(string) bool { return true }) }, func(l ledger) any { return newMessage(l, "2", 5) }, "got an element of type message.Message[int], want string"},
		"nested": {
			func() *flow.Flow { return flow.NewMap(func(s string) any { return message.Message[string]{} }) },
			func(l ledger) any { return l.newMessage("2") }, "returned a message for the value of a message",
		},
		"nested part": {
			func() *flow.Flow {
				return flow.NewFlatMap(func(s string) []message.Message[string] { return make([]message.Message[string], 2) })
			},
			func(l ledger) any { return l.newMessage("2") }, "returned a message for the value of a message",
		},
		"barrier": {func() *flow.Flow { return flow.NewMap(func(s string) any { return s }) }, func(ledger) any { return barrier }, "the stream has checkpoints"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, f := ledger{}, c.flow()
				elements := []any{c.trouble(l), l.newMessage("3"), newMessage(l, "4", 5.0), "plain", barrier}
				want := ledger{"2": {"released"}, "3": {"released"}, "4": {"released"}}
				emitted := 0
				if name == "barrier" {
					elements = append([]any{l.newMessage("1")}, elements...)
					emitted = 1
					delete(want, "2")
				}
				out := through(f, f, elements...)
				synctest.Wait() // it discards after closing Out
				require.ErrorContains(t, f.Err(), c.want)
				require.Equal(t, want, l)
				require.Len(t, out, emitted)
			})
		})
	}
}

// With checkpoints a message with its own acknowledgement is refused, whichever of the
// two comes first. A message that only has a history is accepted.
func TestCheckpointsRefuseAcknowledgements(t *testing.T) { synctest.Test(t, testCheckpointsRefuse) }

func testCheckpointsRefuse(t *testing.T) {
	barrier := func() (participant.Barrier, run) {
		r := run{make(chan error, 1)}
		return participant.NewBarrier(1, participant.Periodic, r), r
	}
	pass := func() *flow.Flow { return flow.NewFilter(func(string) bool { return true }) }

	l := ledger{}
	b, r := barrier()
	f := pass()
	through(f, f, b, l.newMessage("after"))
	require.ErrorContains(t, f.Err(), "the stream has checkpoints, and a message with an acknowledgement of its own")
	require.Equal(t, f.Err(), <-r.failed)
	synctest.Wait()
	require.Equal(t, ledger{"after": {"released"}}, l)

	b, r = barrier()
	f = pass()
	through(f, f, l.newMessage("before"), b)
	require.Equal(t, f.Err(), <-r.failed)
	require.Error(t, f.Err())

	b, _ = barrier()
	f = pass()
	history := message.New("a", &message.Meta{ID: "1"}, nil)
	require.Len(t, through(f, f, b, history, message.Message[string]{}), 3)
	require.NoError(t, f.Err())
}

// Plain elements cause no allocations for messages.
func TestPlainElementsCostNothingMore(t *testing.T) {
	f := flow.NewFilter(func(int) bool { return true })
	var one any = 1 << 20
	in, out := f.In(), f.Out()
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
		in <- one
		if v := <-out; v != one {
			panic(errors.New("another"))
		}
	}), 0.0)
	close(in)
	for range out {
	}
}

// Law A6: steps outside weir never receive failures, because they would treat them as
// elements.
func TestFailuresStayAmongUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := flow.NewMap(func(string) string { panic("boom") })
		out := make(chan any, 10)
		source := make(chan any, 1)
		source <- "a"
		close(source)
		behind := flow.NewMap(func(s string) string { return s })
		extension.NewChanSource(source).Via(broken).Via(behind).To(extension.NewChanSink(out))
		for v := range out {
			t.Errorf("the sink of go-streams got a %T", v)
		}
		require.ErrorContains(t, broken.Err(), "boom")
	})
}

// Law D1: if a source breaks while a message is released, the other messages are still
// released.
func TestFlow_SourceBreaksWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := flow.NewMap(func(string) string { panic("boom") })
		var settled []string
		for _, id := range []string{"1", "2", "3"} {
			f.In() <- message.New("v", &message.Meta{ID: id}, func(message.Settlement) {
				if settled = append(settled, id); id != "2" {
					panic("broken source")
				}
			})
		}
		close(f.In())
		for range f.Out() {
		}
		synctest.Wait()
		require.Equal(t, []string{"1", "2", "3"}, settled)
	})
}
