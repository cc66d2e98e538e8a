package core

import (
	"context"
	"math"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/queue"
)

func defaultOfEven(_ context.Context, r Report[string], _ bool) ([]string, error) {
	in := r.Element
	if n, err := strconv.Atoi(in[1:]); err != nil || n%2 > 0 {
		return nil, errBroken
	}
	return []string{"default-" + in}, nil
}

// handOver sets a failure sink that calls take. The sink is called by work.
func handOver(c *setup, take func(f Report[string])) {
	c.OnFailure = toSink
	c.Sink = func(_ context.Context, f Report[string]) error {
		take(f)
		return nil
	}
}

// Law K1: elements of a key are called one after another, keys do not wait for each
// other, and results of a key leave in input order.
func TestKeyOrder(t *testing.T) {
	r := newRig(t, retries(1, time.Second), byFirstLetter)
	r.feed("a1 a2 b1 a3 b2")
	require.Equal(t, "(a1#1 (b1#1", r.took())
	r.complete("b1#1")
	r.step()
	require.Equal(t, "b1#1 (b2#1", strings.Join(sorted(r.took()), " "))
	r.fail("a1#1")
	r.step()
	r.pass(time.Second - 1)
	require.Empty(t, r.took(), "an element in back-off keeps its key")
	r.pass(1)
	r.idle()
	require.Equal(t, "(a1#2", r.took())
	r.fail("a1#2") // it is dropped
	r.step()
	require.Equal(t, "!a1 (a2#1", r.took())
	r.complete("a2#1 b2#1")
	r.step()
	r.complete("a3#1")
	r.step()
	require.Equal(t, "(a3#1 a2#1 b2#1 a3#1", r.took())
	r.end()
}

// sorted returns the words of a history with results before calls, because they belong to
// the same step.
func sorted(history string) (words []string) {
	for _, results := range []bool{true, false} {
		for w := range strings.FieldsSeq(history) {
			if strings.HasPrefix(w, "(") != results {
				words = append(words, w)
			}
		}
	}
	return words
}

// Law K1: results do not cross a watermark. An element behind a watermark waits for its
// predecessor before the watermark.
func TestKeyOrderAcrossControlElements(t *testing.T) {
	r := newRig(t, nil, byFirstLetter)
	r.feed("a1 |1 a2 b1")
	r.complete("b1#1")
	r.step()
	require.Equal(t, "(a1#1 (b1#1", r.took())
	r.complete("a1#1")
	r.step()
	require.Equal(t, "(a2#1 a1#1 |1 b1#1", r.took())
	r.complete("a2#1")
	r.step()
	require.Equal(t, "a2#1", r.took())
	r.end()
}

// Among the first attempts that may start, the oldest goes first, even if it had to wait
// for its key. A busy key neither starves the others nor starves itself.
func TestKeyOrderIsFair(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { byFirstLetter(c); c.MaxCalls = 1 })
	r.feed("a1 a2 b1 a3")
	for _, call := range []string{"a1#1", "a2#1", "b1#1"} {
		r.feed("a" + strconv.Itoa(len(r.history)))
		r.complete(call)
		r.step()
	}
	require.Equal(t, "(a1#1 (a2#1 a1#1 (b1#1 a2#1 (a3#1 b1#1", r.took())
	r.stop(nil)
}

// An element that times out while it waits for its key keeps its position: the results of
// its handler leave after the results of its predecessors (law K1), and so does its
// failure. If failures are dropped, it leaves immediately.
func TestTimeoutWhileWaitingForKey(t *testing.T) {
	rigWith := func(change func(c *setup)) *rig {
		r := newRig(t, nil, func(c *setup) {
			byFirstLetter(c)
			change(c)
			c.TimeoutFor = func(in string) time.Duration { // the first element has more time than the others
				return map[string]time.Duration{"a1": 3 * time.Minute}[in]
			}
		})
		r.Config.Restored.Keep = KeepSpent // and is restored from a checkpoint
		r.Restore(Item[string, string]{In: "a1", First: 1, Attempts: 1, Spent: time.Second}, 0)
		r.feed("a2 a3 a4")
		r.pass(time.Minute)
		r.work()
		return r
	}
	t.Run("results", func(t *testing.T) {
		attempts := -1
		r := rigWith(func(c *setup) {
			c.Handle = defaultOfEven
			handOver(c, func(f Report[string]) { attempts = f.Attempts })
		})
		r.step()
		require.Equal(t, "(a1#2", r.took())
		require.Empty(t, r.tasks, "a3 waits for its turn")
		require.Equal(t, "a1 a2=[default-a2] a3 a4=[default-a4]", names(r.Items(nil, true)))
		r.complete("a1#2")
		r.step()
		require.Equal(t, "a1#2 default-a2", r.took())
		r.work()
		r.step()
		require.Zero(t, attempts)
		require.Equal(t, "!a3 default-a4", r.took())
		r.end()
	})
	t.Run("dropped", func(t *testing.T) {
		r := rigWith(func(*setup) {})
		require.Equal(t, "(a1#2 !a2 !a3 !a4", r.took())
		require.Equal(t, 1, r.Len())
		r.complete("a1#2")
		r.step()
		r.end()
	})
	t.Run("abandoned", func(t *testing.T) { // law A1: a failed element is handed over at the end, with its own error
		r := rigWith(func(c *setup) {
			c.Handle = defaultOfEven
			handOver(c, func(Report[string]) {})
		})
		r.step()
		r.End(errOver)
		failed := ""
		for _, e := range r.Abandon() {
			if e.WaitsForSink() {
				failed += r.Describe(e).Element
				r.Ended(e, observe.HandedOver)
			} else {
				r.Ended(e, observe.Abandoned)
			}
		}
		require.Equal(t, "a3", failed)
		r.balance()
		r.stop(nil)
	})
}

// Law K1: an element ends only when its failure is taken.
func TestFailureKeepsItsKeyUntilItIsTaken(t *testing.T) {
	r := newRig(t, nil, func(c *setup) {
		byFirstLetter(c)
		handOver(c, func(Report[string]) {})
	})
	r.feed("a1 a2 b1")
	r.fail("a1#1")
	r.idle()
	require.Equal(t, "(a1#1 (b1#1", r.took())
	r.work()
	r.idle()
	require.Equal(t, "!a1 (a2#1", r.took())
	r.complete("a2#1 b1#1")
	r.step()
	r.end()
}

// A call that outlives its element or its attempt keeps the key until it returns
// (law K1), even against retries of its own element. Outcomes do not wait for it.
func TestCallThatOutlivesKeepsItsKey(t *testing.T) {
	t.Run("the attempt", func(t *testing.T) {
		r := newRig(t, retries(1, time.Second), func(c *setup) { byFirstLetter(c); c.AttemptTimeout = 5 * time.Second })
		r.answer = occupy
		r.feed("a1 a2")
		r.pass(10 * time.Second)
		require.Equal(t, "(a1#1", r.took(), "no retry beside the call")
		c, _ := r.Counts()
		require.EqualValues(t, 1, c.WaitingForRetry)
		r.calls["a1#1"].Returned()
		r.idle()
		require.Equal(t, "(a1#2", r.took())
		r.pass(5 * time.Second)
		require.Equal(t, "!a1", r.took(), "not a2 beside the call")
		r.calls["a1#2"].Returned()
		r.idle()
		require.Equal(t, "(a2#1", r.took())
		r.complete("a2#1")
		r.step()
		require.Equal(t, "a2#1", r.took())
		require.Len(t, r.lines(), 1, "the call has not returned")
		r.calls["a2#1"].Returned()
		r.idle()
		require.Empty(t, r.lines())
		r.end()
	})
	t.Run("the element", func(t *testing.T) {
		r := newRig(t, nil, func(c *setup) { byFirstLetter(c); c.Handle = defaultOfEven })
		r.answer = occupy
		r.feed("a1 a2 a3")
		r.pass(time.Minute)
		r.work()
		r.step()
		require.Equal(t, "(a1#1 !a1 default-a2 !a3", strings.Join(append(sorted(r.took())[3:], "!a1 default-a2 !a3"), " "))
		require.Zero(t, r.Len())
		r.feed("a4 b1")
		require.Equal(t, "(b1#1", r.took())
		r.calls["a1#1"].Complete("late")
		r.calls["a1#1"].Returned()
		r.idle()
		require.Equal(t, "(a4#1", r.took())
		r.stop(nil)
	})
}

func (r *rig) lines() map[string]*keyedLine[string, string, string] {
	return r.setup.Keys.(*keys[string, string, string]).lines
}

// Law A5: at the end of the input, the elements that wait for their key get their first
// attempts, one after another, and no retry.
func TestKeyOrderAtTheEndOfInput(t *testing.T) {
	r := newRig(t, retries(9, time.Second), byFirstLetter)
	r.feed("a1 a2 a3")
	r.fail("a1#1")
	r.step()
	r.EndRetries()
	r.idle()
	require.Equal(t, "(a1#1 (a1#2", r.took())
	r.fail("a1#2")
	r.idle()
	r.fail("a2#1")
	r.idle()
	r.complete("a3#1")
	r.idle()
	require.Equal(t, "!a1 (a2#1 !a2 (a3#1 a3#1", r.took())
	r.end()
}

// Laws C1, C3 and K1: restored elements wait for their predecessors, back-off included.
// Results that were complete leave first.
func TestKeyOrderRestored(t *testing.T) {
	r := newRig(t, retries(9, 10*time.Second), byFirstLetter)
	r.feed("a1 b1 a2 b2")
	r.complete("b1#1")
	r.fail("a1#1")
	r.Step()
	r.pass(0)
	r.took()
	r.feed("b3")
	r.complete("b2#1")
	r.Step()
	require.Equal(t, "a1+10s a2 b2=[b2#1] b3", names(r.Items(nil, true)))

	again := newRig(t, retries(9, 10*time.Second), byFirstLetter)
	for _, it := range r.Items(nil, true) {
		again.Restore(it, 0)
	}
	require.Equal(t, "(b3#1", again.took())
	again.idle()
	require.Equal(t, "b2#1", again.took())
	again.pass(10*time.Second - 1)
	require.Empty(t, again.took())
	again.pass(1)
	again.idle()
	require.Equal(t, "(a1#1", again.took())
	again.complete("a1#1 b3#1")
	again.idle()
	again.complete("a2#1")
	again.idle()
	again.end()

	// The state of an operator without key order may have more than one element of a key
	// in back-off.
	other := newRig(t, retries(9, time.Second), byFirstLetter)
	for _, it := range []Item[string, string]{{In: "a1", Wait: 5 * time.Second}, {In: "a2", Wait: time.Second}, {In: "a3"}} {
		other.Restore(it, 0)
	}
	other.pass(5 * time.Second)
	other.idle()
	require.Equal(t, "(a1#1", other.took())
	for _, call := range []string{"a1#1", "a2#1", "a3#1"} {
		other.complete(call)
		other.idle()
	}
	require.Equal(t, "(a2#1 a1#1 (a3#1 a2#1 a3#1", strings.ReplaceAll(strings.Join(strings.Fields(other.took()), " "), "a1#1 (a2#1", "(a2#1 a1#1"))
	other.end()
}

// A restored element that waits behind another element keeps its restored attempts.
func TestRestoredAttemptsBehind(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { byFirstLetter(c); c.Restored.Keep = KeepSpent })
	r.Restore(Item[string, string]{In: "a1", First: 1, Attempts: 3}, 0)
	r.Restore(Item[string, string]{In: "a2", First: 1, Attempts: 3}, 0)
	items := r.Items(nil, false)
	require.EqualValues(t, 3, items[0].Attempts)
	require.EqualValues(t, 3, items[1].Attempts)
	r.stop(nil)
}

// Reading stops when as many elements as the bound allows wait for a key, until one of
// them starts.
func TestMaxWaiting(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { byFirstLetter(c); c.MaxWaitingPerKey = 2 })
	r.feed("a1 a2 b1")
	require.True(t, r.HasSlot())
	r.feed("a3")
	require.False(t, r.HasSlot())
	r.complete("a1#1")
	r.step()
	require.True(t, r.HasSlot())
	r.complete("b1#1 a2#1")
	r.step()
	r.complete("a3#1")
	r.step()
	r.end()
}

// Law A6: a key function that breaks fails its element, and so does a key that could not
// be found again. Other elements continue.
func TestBrokenKeys(t *testing.T) {
	for name, key := range map[string]func(in string) any{
		"panic":          func(string) any { panic("no key") },
		"goexit":         func(string) any { runtime.Goexit(); return nil },
		"NaN":            func(string) any { return math.NaN() },
		"NaN in it":      func(string) any { return [1]float64{math.NaN()} },
		"not comparable": func(string) any { return []int{1} },
	} {
		t.Run(name, func(t *testing.T) {
			var failed error
			o := &notebook{}
			r := newRig(t, nil, func(c *setup) {
				byFirstLetter(c)
				c.Observers = []observe.Observer{o}
				c.Keys = NewKeys[any, string, string](func(in string) any {
					if in == "x" {
						return key(in)
					}
					return in[:1]
				}, unusable)
				c.GivenUp = func(f Report[string], _ observe.EndKind) { failed = f.Err }
			})
			r.feed("a1")
			onGoroutine(func() { r.feed("x") })
			if name == "goexit" {
				r.exitedBy("the key function")
				return
			}
			if name == "panic" {
				require.ErrorContains(t, failed, "panic in user code: no key")
			} else {
				require.ErrorContains(t, failed, "unusable key")
			}
			r.feed("a2 b1")
			r.complete("a1#1")
			r.step()
			r.complete("a2#1 b1#1")
			r.step()
			require.Contains(t, o.took(), "+x\n")
			require.Empty(t, r.setup.Keys.(*keys[any, string, string]).lines)
			r.end()
		})
	}
}

// Law A6: a restored element that is complete, and whose key function breaks, has failed.
// Nothing else changes.
func TestBrokenKeyOfRestoredResults(t *testing.T) {
	r := newRig(t, nil, func(c *setup) {
		c.Queue = queue.NewUnordered[*Slot[string, string]](4)
		c.Keys = NewKeys[int, string, string](func(string) int { panic("broken key") }, unusable)
	})
	done := Item[string, string]{In: "a", Restored: true}
	done.SetResults([]string{"x"})
	r.Restore(done, 0)
	r.idle()
	require.Equal(t, "!a", r.took())
	r.end()
}

// A key is released with its last element, although the memory of its line is reused.
func TestKeysAreLetGoOf(t *testing.T) {
	key := new([64]byte)
	r := newRig(t, nil, func(c *setup) {
		c.Queue = queue.NewUnordered[*Slot[string, string]](4)
		c.Keys = NewKeys[*[64]byte, string, string](func(string) *[64]byte { return key }, unusable)
	})
	r.feed("a")
	r.complete("a#1")
	r.idle()
	gone := weak.Make(key)
	key = nil
	runtime.GC()
	require.Nil(t, gone.Value())
	r.end()
}

// An element whose observer breaks keeps its position in the line of its key.
func TestKeyOrderAfterAnObserverBreaks(t *testing.T) {
	o := &notebook{on: func(what string) {
		if what == "+a1" {
			panic("broken")
		}
	}}
	r := newRig(t, nil, func(c *setup) { byFirstLetter(c); c.Observers = []observe.Observer{o} })
	r.feed("a1")
	r.feed("a2")
	r.idle()
	require.Equal(t, "!a1 (a2#1", r.took())
	r.complete("a2#1")
	r.idle()
	r.end()
}

// byWhole gives each element its own key.
func byWhole(slots int) func(c *setup) {
	return func(c *setup) {
		c.Queue = queue.NewUnordered[*Slot[string, string]](slots)
		c.Keys = NewKeys[string, string, string](func(in string) string { return in }, unusable)
	}
}

// A key is remembered as long as an element of it is in flight: a million keys pass and
// leave no memory behind (law K1).
func TestKeysWithoutElementsCostNothing(t *testing.T) {
	n := 1_000_000
	if raceDetector {
		n = 50_000
	}
	var held []*call.Attempt[string]
	for _, tt := range []struct {
		name        string
		slots, keys int
		hold        bool
	}{
		{"one after the other", 100, n, false},
		{"at once", n / 4, n / 4, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil, func(c *setup) {
				byWhole(tt.slots)(c)
				c.Invoke = func(_ context.Context, _ string, a *call.Attempt[string]) error {
					if tt.hold {
						held = append(held, a)
					} else {
						a.Complete()
					}
					return nil
				}
			})
			most := 0
			feed := func(keys int) {
				for i := range keys {
					r.Accept(strconv.Itoa(i), call.Message{})
					if !tt.hold {
						r.head3()
					}
					most = max(most, len(r.lines()))
				}
				for _, a := range held {
					a.Complete()
				}
				held = nil
				r.step()
			}
			feed(100) // memory that is kept for reuse is allocated
			before := liveBytes()
			feed(tt.keys)
			if tt.hold {
				require.Equal(t, tt.keys, most)
			} else {
				require.LessOrEqual(t, most, tt.slots)
			}
			require.Zero(t, r.Len())
			require.Empty(t, r.lines())
			live := liveBytes() - before
			t.Logf("%d keys leave %d bytes", tt.keys, live)
			require.Less(t, live, int64(700_000), "what a thousand elements leave for others")
			r.end()
		})
	}
}

func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The map of the lines shrinks even if it is never empty.
func TestKeysShrink(t *testing.T) {
	m := NewKeys[int, int, int](func(in int) int { return in }, unusable).(*keys[int, int, int])
	lines := make([]*line[int, int], 10*keepSpare)
	for i := range lines {
		lines[i], _ = m.line(i)
	}
	table := m.lines
	for _, l := range lines[1:] {
		m.forget(l)
	}
	require.Len(t, m.lines, 1)
	require.Greater(t, len(table), 1, "it was replaced")
	require.LessOrEqual(t, m.most, keepSpare)
	l, err := m.line(0)
	require.NoError(t, err)
	require.Same(t, lines[0], l)
}

// Key order makes no allocation for an element, and has no cost where it is not used.
func TestKeyOrderAllocates(t *testing.T) {
	per := func(change func(c *setup)) float64 {
		r := newRig(t, nil, func(c *setup) {
			change(c)
			c.Invoke = func(_ context.Context, _ string, a *call.Attempt[string]) error {
				a.Complete()
				return nil
			}
		})
		return testing.AllocsPerRun(1000, func() {
			r.Accept("a1", call.Message{})
			r.Accept("b1", call.Message{})
			r.Step()
			r.head3()
		})
	}
	require.Equal(t, 2.0, per(byFirstLetter), "the attempts")
	require.Equal(t, 2.0, per(unordered), "the attempts")
}

// Members that wrappers of the function complete without the call release their keys,
// even if no member is called.
func TestKeyOrderOfMembersWithoutACall(t *testing.T) {
	r := withBatches(t, 2, 0, nil, func(c *setup) {
		byFirstLetter(c)
		c.Invoke = func(_ context.Context, in string, a *call.Attempt[string]) error {
			a.Complete(in)
			return nil
		}
	})
	r.feed("a1 a2 b1 a3")
	for range 4 {
		r.step()
	}
	require.ElementsMatch(t, []string{"a1", "a2", "a3", "b1"}, r.history)
	require.Less(t, strings.Index(r.took(), "a1"), 7)
	require.Empty(t, r.lines())
	r.end()
}

// An element whose failure is being handled has not ended. The next element of its key
// waits. An element for which the handler has no answer fails in key order (law K1).
func TestHandledFailuresKeepTheirKey(t *testing.T) {
	r := newRig(t, nil, func(c *setup) {
		byFirstLetter(c)
		c.Handle, c.HandlesAll = defaultOfEven, true
	})
	r.feed("a2 a3 a4")
	r.fail("a2#1")
	r.step()
	require.Equal(t, "(a2#1", r.took())
	r.work()
	r.step()
	require.Equal(t, "(a3#1 default-a2", r.took())
	r.fail("a3#1")
	r.step()
	r.work()
	r.step()
	require.Equal(t, "!a3 (a4#1", r.took())
	r.complete("a4#1")
	r.step()
	require.Equal(t, "a4#1", r.took())
	r.end()
}
