package order_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/strategies"
)

// ---- Law Q1: order, and watermarks as walls

// Law Q1: in input order, or in the order of completion.
func TestOrderOfOutputs(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("abcd")
		for _, e := range []string{"c", "a", "d", "b"} {
			r.Complete(e+"#1", strings.ToUpper(e))
		}
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A B C D", "C A D B"), r.Outputs())
	}, 4, 16)
}

// Law Q1: the same applies to completions that the loop finds together: they count in the
// order in which they were posted.
func TestOrderOfCompletionsInOneStep(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Script("x#1", func(c *optest.Call) error { time.Sleep(time.Second); return optest.Upper(c) }) // the loop is busy
		r.SendEach("abc")
		a, b, c := r.Call("a#1"), r.Call("b#1"), r.Call("c#1")
		r.Op.In() <- "x"
		c.Complete("C")
		a.Complete("A")
		b.Complete("B")
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A B C X", "C A B X"), r.Outputs(), "x, completed on the loop, is no exception")
	})
}

// Law Q1: the same applies if a single call completes all elements, like a call that
// collects elements for a batch.
func TestOrderOfCompletionsOfABatch(t *testing.T) {
	for _, order := range []string{"abc", "acb", "cab", "cba"} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			futures := map[string]asyncop.ResultFuture[string]{}
			fn := asyncop.Func(func(_ context.Context, in string, result asyncop.ResultFuture[string]) error {
				futures[in] = result
				for _, e := range order {
					if len(futures) == len(order) {
						futures[string(e)].Complete(strings.ToUpper(string(e)))
					}
				}
				return nil
			})
			op := optest.Construct(m, fn, time.Minute, strategies.Retry[string](optest.RetryAll(1, time.Second)))
			go func() {
				for _, e := range "abc" {
					op.In() <- string(e)
				}
				close(op.In())
			}()
			var got []string
			for out := range op.Out() {
				got = append(got, out.(string))
			}
			require.NoError(t, op.Wait())
			require.Equal(t, m.Pick("ABC", strings.ToUpper(order)), strings.Join(got, ""))
		})
	}
}

// Law Q1: in ordered mode no result is emitted before the head's results, however late
// they come. In unordered mode the other elements do not wait for the head.
func TestHeadOfLine(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, 10*time.Second)})
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		r.Complete("b#1", "B")
		r.Complete("c#1", "C")
		require.Equal(t, m.Pick("", "B C"), r.Outputs())
		r.Advance(10 * time.Second)
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A@10s B@10s C@10s", "B@0s C@0s A@10s"), r.OutputTimes())
	})
}

// Law Q1: results do not cross a watermark in either direction.
func TestWatermarksAreWalls(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Send("a", "b", optest.Mark(1), "c", "d", optest.Mark(2), "e")
		r.Complete("e#1", "E")
		r.Complete("d#1", "D")
		r.Complete("b#1", "B")
		require.Equal(t, m.Pick("", "B"), r.Outputs())
		r.Complete("a#1", "A")
		require.Equal(t, m.Pick("A B |1|", "B A |1| D"), r.Outputs())
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A B |1| C D |2| E", "B A |1| D C |2| E"), r.Outputs())
	})
}

// Law Q1: watermarks without elements before, between or after them. An idle operator
// passes them on immediately.
func TestWatermarksAlone(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Send(optest.Mark(1))
		require.Equal(t, "|1|", r.Outputs())
		r.Send(optest.Mark(2), optest.Mark(3), "a", optest.Mark(4), optest.Mark(5))
		require.Equal(t, "|1| |2| |3|", r.Outputs())
		r.Complete("a#1")
		require.NoError(t, r.End())
		require.Equal(t, "|1| |2| |3| |4| |5|", r.Outputs())
		require.EqualValues(t, 1, r.Stats().Accepted, "watermarks are no elements")
	})
}

// Law Q1: many segments, completed from last to first.
func TestOrderedWait_ManySegments(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Send("a", optest.Mark(1), "b", optest.Mark(2), "c", optest.Mark(3), "d")
		for _, e := range []string{"d", "c", "b", "a"} {
			require.Empty(t, r.Outputs())
			r.Complete(e+"#1", strings.ToUpper(e))
		}
		require.NoError(t, r.End())
		require.Equal(t, "A |1| B |2| C |3| D", r.Outputs())
	})
}

// Law Q1: a watermark waits for an earlier element that is in back-off, in its timeout
// handler, or not yet taken by the failure sink.
func TestWatermarkWaitsForTheElementBeforeIt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.Send("a", optest.Mark(1), "b")
		r.Complete("b#1", "B")
		r.Fail("a#1", optest.ErrBroken) // back-off
		require.Empty(t, r.Outputs())
		r.Advance(time.Second)
		r.Fail("a#2", optest.ErrBroken) // failed, not taken
		require.Empty(t, r.Outputs())
		side.Unblock()
		require.NoError(t, r.End())
		require.Equal(t, "|1| B", r.Outputs())
		require.Equal(t, "a", side.Elements())
	})
}

// Law Q1: a dropped element lets the watermark pass.
func TestWithDropOnFailure_WatermarkPasses(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Send("a", optest.Mark(1), "b")
		r.Fail("a#1", optest.ErrBroken)
		require.Equal(t, "|1|", r.Outputs())
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Equal(t, "|1| B", r.Outputs())
	})
}

// Law Q1: the results of an element are split neither by a watermark nor by results of
// another element, however slow downstream is.
func TestResultsOfOneElementStayTogether(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))})
		next := func() string {
			v := <-r.Op.Out()
			return optest.Text(v)
		}
		r.Send("a", "b", optest.Mark(1), "c")
		r.Complete("b#1", "B1", "B2", "B3")
		if !m.Ordered {
			require.Equal(t, "B1", next())
		}
		r.Complete("c#1", "C1", "C2")
		r.Complete("a#1", "A1", "A2") // while b's results are being emitted
		var got []string
		for range 8 - map[bool]int{false: 1}[m.Ordered] {
			got = append(got, next())
		}
		require.Equal(t, m.Pick("A1 A2 B1 B2 B3 |1| C1 C2", "B2 B3 A1 A2 |1| C1 C2"), strings.Join(got, " "))
		require.NoError(t, r.End())
	})
}

// Law Q1: more results than the operator sends in one step, and more than fit into Out.
func TestOrderedWait_ManyResultsStayTogether(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		many := func(s string) []string { return strings.Fields(strings.Repeat(s+" ", 150)) }
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithBuffer(3))})
		r.Send("a", "b", optest.Mark(1), "c")
		a, b, c := r.Call("a#1"), r.Call("b#1"), r.Call("c#1")
		c.Complete(many("C")...)
		b.Complete(many("B")...)
		a.Complete(many("A")...)
		require.NoError(t, r.End())
		first, second := m.Pick("A", "B"), m.Pick("B", "A")
		want := append(append(many(first), many(second)...), append([]string{"|1|"}, many("C")...)...)
		require.Equal(t, strings.Join(want, " "), r.Outputs())
	})
}

// Law Q1: retried, timed-out and dropped elements do not disturb the order, which is
// input order or completion order.
func TestOrderWithRetriesAndTimeouts(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(3, 100*time.Millisecond), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.Script("a#1", optest.Fails)
		r.Script("a#2", optest.Upper)
		r.Script("c#1", optest.Upper)
		r.Script("d#1", optest.Fails)
		r.Script("d#2", optest.Fails)
		r.Script("d#3", optest.Upper)
		r.SendEach("abcd") // b times out
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A b! C D", "C A D b!"), r.Outputs())
	})
}
