package order_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ---- Law Q2: slots never exceed the capacity, and wait for downstream; timers do not.

// Law Q2: elements in flight.
func TestCapacityBoundsElementsInFlight(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		for i := range m.Capacity + 3 {
			r.Send(string(rune('a' + i)))
		}
		require.EqualValues(t, m.Capacity, r.Stats().Accepted)
		r.Complete("a#1", "A")
		require.EqualValues(t, m.Capacity+1, r.Stats().Accepted)
		r.Answer = optest.Upper
		for _, c := range r.Made {
			_ = optest.Upper(c)
		}
		require.NoError(t, r.End())
		require.EqualValues(t, m.Capacity+3, r.Stats().Accepted)
	}, 1, 2, 7)
}

// Law Q2: elements in back-off, and elements whose retry waits for a permit.
func TestCapacityCountsBackoff(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 2
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		require.Equal(t, "a#1 b#1", r.Calls(), "in back-off")
		r.Advance(time.Second)
		require.Equal(t, "a#1 b#1", r.Calls(), "due")
		require.EqualValues(t, 2, r.Stats().Accepted)
		r.Complete("b#1", "B")
		r.Complete("a#2", "A")
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
		require.EqualValues(t, 3, r.Stats().Accepted)
	})
}

// Law Q2: elements that are complete but not emitted hold slots: downstream is blocked
// or, in ordered mode, the head is not complete.
func TestCapacityCountsWhatIsCompleteAndNotEmitted(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 3
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))})
		r.SendEach("abc")
		r.Complete("b#1", "B")
		r.Complete("c#1", "C")
		go func() { r.Op.In() <- "d" }()
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		r.Complete("a#1", "A")
		require.Equal(t, "a#1 b#1 c#1", r.Calls(), "downstream takes nothing")
		<-r.Op.Out()
		require.Equal(t, "a#1 b#1 c#1 d#1", r.Calls())
		r.Complete("d#1", "D")
		r.Unblock()
		require.NoError(t, r.End())
	})
}

// Law Q2: an element that emits several results holds its slot until the last result is
// taken.
func TestSlotIsHeldUntilTheLastResult(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 1
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))})
		r.SendEach("a")
		r.Complete("a#1", "A1", "A2")
		go func() { r.Op.In() <- "b" }()
		<-r.Op.Out()
		require.Equal(t, "a#1", r.Calls())
		<-r.Op.Out()
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1")
		require.NoError(t, r.End())
	})
}

// Law Q2: watermarks take slots, and a full operator does not accept a watermark.
func TestCapacityCountsWatermarks(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 3
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithBuffer(0))})
		r.Send("a", optest.Mark(1), optest.Mark(2))
		sent := make(chan struct{})
		go func() { r.Op.In() <- optest.Mark(3); close(sent) }()
		r.Advance(time.Hour)
		select {
		case <-sent:
			t.Fatal("a fourth slot")
		default:
		}
		r.Complete("a#1", "A")
		<-sent
		require.NoError(t, r.End())
		require.Equal(t, "A |1| |2| |3|", r.Outputs())
	})
}

// Law Q2: elements whose timeout handler runs hold slots, and so do failed elements that
// the failure sink has not taken.
func TestCapacityCountsHandlersAndFailures(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 2
		answer := make(chan struct{})
		side := optest.NewSideSink(true)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) { <-answer; return nil, nil })
			},
		})
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Second) // b's handler runs
		require.Equal(t, "a#1 b#1", r.Calls())
		close(answer)
		require.Equal(t, m.Pick("a#1 b#1", "a#1 b#1 c#1"), r.Calls(), "in order, b waits for a")
		side.Unblock()
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
	})
}

// Law Q2: a dropped element, or an element without a result, frees its slot without
// downstream.
func TestSlotsOfElementsThatEmitNothing(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithBuffer(0))})
		r.Answer = func(c *optest.Call) error {
			if c.In < "m" {
				return optest.ErrBroken
			}
			return optest.Empty(c)
		}
		r.SendEach("abcxyz")
		require.Equal(t, "a#1 b#1 c#1 x#1 y#1 z#1", r.Calls())
		require.NoError(t, r.End())
	}, 1, 2)
}

// Law Q2: retries are made on time although downstream is blocked.
func TestRetriesUnderBackpressure(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, time.Second), Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0)),
		})
		r.Script("a#1", optest.Upper) // blocked by downstream
		r.Script("b#1", optest.Fails)
		r.Script("b#2", optest.Fails)
		r.Script("b#3", optest.Upper)
		r.SendEach("ab")
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s b#2@1s b#3@2s", r.CallTimes())
		r.Unblock()
		require.NoError(t, r.End())
		require.Equal(t, "A B", r.Outputs())
	})
}

// Law Q2: attempt timeouts also fire on time.
func TestAttemptTimeoutsUnderBackpressure(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, time.Second), Blocked: true,
			Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithAttemptTimeout(2*time.Second)),
		})
		r.Script("a#1", optest.Upper) // blocked by downstream
		r.SendEach("ab")
		r.Advance(4 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s b#2@3s", r.CallTimes())
		r.Complete("b#2", "B")
		r.Unblock()
		require.NoError(t, r.End())
	})
}

// Small operators do the same work as large operators, only more slowly: every element
// leaves once, in its order.
func TestSmallOperatorsDoTheSameWork(t *testing.T) {
	for _, buffer := range []int{0, 1, 64} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Second, Strategy: optest.RetryAll(2, 100*time.Millisecond), Wrap: optest.Handled,
				Opts: optest.Options(asyncop.WithBuffer(buffer), asyncop.WithDropOnFailure()),
			})
			r.Answer = func(c *optest.Call) error {
				switch {
				case c.In == "t": // times out
					return nil
				case c.In == "r" && c.Attempt < 3, c.In == "f":
					return optest.ErrBroken
				case c.In == "g":
					go func() { time.Sleep(50 * time.Millisecond); _ = optest.Upper(c) }()
					return nil
				}
				return optest.Upper(c)
			}
			for _, e := range "atbrcfdget" {
				r.Op.In() <- string(e)
			}
			r.Op.In() <- optest.Mark(1)
			r.Op.In() <- "z"
			r.EndInputOnce()
			r.Advance(time.Minute)
			require.NoError(t, r.End())
			require.Regexp(t, `\|1\| Z$`, r.Outputs())
			require.NotContains(t, r.Outputs(), "F")
			got := strings.Fields(r.Outputs())
			if m.Ordered {
				require.Equal(t, "A t! B R C D G E t! |1| Z", r.Outputs())
			}
			require.ElementsMatch(t, strings.Fields("A t! B R C D G E t! |1| Z"), got)
			optest.CheckBalance(t, r.Stats())
		}, 1, 2, 3)
	}
}
