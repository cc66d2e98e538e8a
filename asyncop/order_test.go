package asyncop_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/strategies"
)

// ---- Law Q1: order, and watermarks as walls.

// Q1: in input order, or in the order of completion.
func TestOrderOfOutputs(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("abcd")
		for _, e := range []string{"c", "a", "d", "b"} {
			r.complete(e+"#1", strings.ToUpper(e))
		}
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A B C D", "C A D B"), r.outputs())
	}, 4, 16)
}

// Q1: the same for completions that the loop finds all at once: they count in the order in which they were handed in.
func TestOrderOfCompletionsInOneTurn(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.script("x#1", func(c *call) error { time.Sleep(time.Second); return upper(c) }) // the loop is away
		r.sendEach("abc")
		a, b, c := r.call("a#1"), r.call("b#1"), r.call("c#1")
		r.op.In() <- "x"
		c.Complete("C")
		a.Complete("A")
		b.Complete("B")
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A B C X", "C A B X"), r.outputs(), "x, completed on the loop, is no exception")
	})
}

// Q1: the same if it is one call that completes them all, as one does that collects elements for a batch.
func TestOrderOfCompletionsOfABatch(t *testing.T) {
	for _, order := range []string{"abc", "acb", "cab", "cba"} {
		forEachMode(t, func(t *testing.T, m mode) {
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
			op := construct(m, fn, time.Minute, strategies.AsyncRetryStrategy[string](retryAll(1, time.Second)))
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
			require.Equal(t, m.pick("ABC", strings.ToUpper(order)), strings.Join(got, ""))
		})
	}
}

// Q1: in order, nothing is emitted before the head, however late it comes; without order everything but the head is.
func TestHeadOfLine(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, 10*time.Second)})
		r.sendEach("abc")
		r.fail("a#1", errBroken)
		r.complete("b#1", "B")
		r.complete("c#1", "C")
		require.Equal(t, m.pick("", "B C"), r.outputs())
		r.advance(10 * time.Second)
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A@10s B@10s C@10s", "B@0s C@0s A@10s"), r.outputTimes())
	})
}

// Q1: nothing crosses a watermark in either direction.
func TestWatermarksAreWalls(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.send("a", "b", mark(1), "c", "d", mark(2), "e")
		r.complete("e#1", "E")
		r.complete("d#1", "D")
		r.complete("b#1", "B")
		require.Equal(t, m.pick("", "B"), r.outputs())
		r.complete("a#1", "A")
		require.Equal(t, m.pick("A B |1|", "B A |1| D"), r.outputs())
		r.complete("c#1", "C")
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A B |1| C D |2| E", "B A |1| D C |2| E"), r.outputs())
	})
}

// Q1: watermarks with nothing before, between or after them; an idle operator passes them on at once.
func TestWatermarksAlone(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.send(mark(1))
		require.Equal(t, "|1|", r.outputs())
		r.send(mark(2), mark(3), "a", mark(4), mark(5))
		require.Equal(t, "|1| |2| |3|", r.outputs())
		r.complete("a#1")
		require.NoError(t, r.end())
		require.Equal(t, "|1| |2| |3| |4| |5|", r.outputs())
		require.EqualValues(t, 1, r.stats().Accepted, "watermarks are no elements")
	})
}

// Q1: many segments, completed from the last to the first.
func TestManySegments(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.send("a", mark(1), "b", mark(2), "c", mark(3), "d")
		for _, e := range []string{"d", "c", "b", "a"} {
			require.Empty(t, r.outputs())
			r.complete(e+"#1", strings.ToUpper(e))
		}
		require.NoError(t, r.end())
		require.Equal(t, "A |1| B |2| C |3| D", r.outputs())
	})
}

// Q1: an element in back-off, with its timeout handler, or with a failure sink that takes nothing, holds the wall.
func TestWatermarkWaitsForTheElementBeforeIt(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithFailureSink(side.take)),
		})
		r.send("a", mark(1), "b")
		r.complete("b#1", "B")
		r.fail("a#1", errBroken) // back-off
		require.Empty(t, r.outputs())
		r.advance(time.Second)
		r.fail("a#2", errBroken) // failed, not taken
		require.Empty(t, r.outputs())
		side.unblock()
		require.NoError(t, r.end())
		require.Equal(t, "|1| B", r.outputs())
		require.Equal(t, "a", side.elements())
	})
}

// Q1: a dropped element opens the wall.
func TestDroppedElementLetsTheWatermarkPass(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithDropOnFailure())})
		r.send("a", mark(1), "b")
		r.fail("a#1", errBroken)
		require.Equal(t, "|1|", r.outputs())
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Equal(t, "|1| B", r.outputs())
	})
}

// Q1: the results of one element are split neither by a watermark nor by another element's, however slow downstream is.
func TestResultsOfOneElementStayTogether(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))})
		next := func() string {
			v := <-r.op.Out()
			return text(v)
		}
		r.send("a", "b", mark(1), "c")
		r.complete("b#1", "B1", "B2", "B3")
		if !m.ordered {
			require.Equal(t, "B1", next())
		}
		r.complete("c#1", "C1", "C2")
		r.complete("a#1", "A1", "A2") // while b's results are under way
		var got []string
		for range 8 - map[bool]int{false: 1}[m.ordered] {
			got = append(got, next())
		}
		require.Equal(t, m.pick("A1 A2 B1 B2 B3 |1| C1 C2", "B2 B3 A1 A2 |1| C1 C2"), strings.Join(got, " "))
		require.NoError(t, r.end())
	})
}

// Q1: more results than the operator sends in one turn, and than fit into Out.
func TestManyResultsStayTogether(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		many := func(s string) []string { return strings.Fields(strings.Repeat(s+" ", 150)) }
		r := newRig(t, m, setup{opts: options(asyncop.WithBuffer(3))})
		r.send("a", "b", mark(1), "c")
		a, b, c := r.call("a#1"), r.call("b#1"), r.call("c#1")
		c.Complete(many("C")...)
		b.Complete(many("B")...)
		a.Complete(many("A")...)
		require.NoError(t, r.end())
		first, second := m.pick("A", "B"), m.pick("B", "A")
		want := append(append(many(first), many(second)...), append([]string{"|1|"}, many("C")...)...)
		require.Equal(t, strings.Join(want, " "), r.outputs())
	})
}

// Q1: retried, timed-out and dropped elements among others keep the input order, or that of completion.
func TestOrderWithRetriesAndTimeouts(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(3, 100*time.Millisecond), wrap: handled,
			opts: options(asyncop.WithDropOnFailure()),
		})
		r.script("a#1", fails)
		r.script("a#2", upper)
		r.script("c#1", upper)
		r.script("d#1", fails)
		r.script("d#2", fails)
		r.script("d#3", upper)
		r.sendEach("abcd") // b times out
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A b! C D", "C A D b!"), r.outputs())
	})
}
