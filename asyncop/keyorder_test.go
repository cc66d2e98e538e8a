package asyncop_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/codec"
)

// ---- Key order (law K1)

// firstLetter is the key of the elements of these tests.
func firstLetter(in string) string { return in[:1] }

var keyMode = mode{capacity: defaultCapacity}

func newKeyRig(t *testing.T, s setup) *rig {
	t.Helper()
	s.key = firstLetter
	return newRig(t, keyMode, s)
}

// Elements of a key go one after the other, back-off included; keys do not wait for each other.
func TestKeyOrderedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, setup{timeout: time.Minute, strategy: retryAll(1, time.Second)})
		r.send("a1", "a2", "b1", "a3")
		require.Equal(t, "a1#1 b1#1", r.calls())
		require.EqualValues(t, 2, r.stats().WaitingForKey)
		r.advance(time.Second)
		r.fail("a1#1", errBroken)
		r.complete("b1#1", "B1")
		r.advance(time.Second)
		require.Equal(t, "a1#1@0s b1#1@0s a1#2@2s", r.callTimes())
		r.complete("a1#2", "A1")
		r.complete("a2#1", "A2")
		r.advance(time.Second)
		r.complete("a3#1", "A3")
		require.Equal(t, "B1@1s A1@2s A2@2s A3@3s", r.outputTimes())
		require.NoError(t, r.end())
	})
}

// Watermarks stay where they are; an element behind one waits for its key before it.
func TestKeyOrderedWatermarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, setup{})
		r.send("a1", "b1", mark(1), "a2", "c1")
		require.Equal(t, "a1#1 b1#1 c1#1", r.calls())
		r.complete("c1#1", "C1")
		r.complete("a1#1", "A1")
		require.Equal(t, "a1#1 b1#1 c1#1 a2#1", r.calls())
		r.complete("a2#1", "A2")
		require.Equal(t, "A1", r.outputs())
		r.complete("b1#1", "B1")
		require.Equal(t, "A1 B1 |1| C1 A2", r.outputs())
		require.NoError(t, r.end())
	})
}

// An element may time out while it waits for its key: it has made no attempt. Failures of a key are handed over in input order,
// and the key is busy until they are taken.
func TestKeyOrderedTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		side := newSideSink(true)
		r := newKeyRig(t, setup{timeout: 10 * time.Second, opts: options(asyncop.WithFailureSink(side.take))})
		r.send("a1")
		r.advance(time.Second)
		r.send("a2", "b1")
		r.advance(time.Second)
		r.send("a3")
		r.advance(9 * time.Second)
		r.complete("b1#1") // late
		require.EqualValues(t, 3, r.stats().Timeouts)
		require.Equal(t, "a1#1 b1#1", r.calls(), "the failure of a1 was not taken")
		side.unblock()
		require.Equal(t, "a1#1@0s b1#1@1s a3#1@11s", r.callTimes())
		r.complete("a3#1", "A3")
		require.NoError(t, r.end())
		attempts := map[string]int{}
		for _, f := range side.got() {
			var timeout *asyncop.TimeoutError
			require.ErrorAs(t, f.Err, &timeout)
			require.False(t, timeout.InDoubt && f.Attempts == 0)
			attempts[f.Element] = f.Attempts
		}
		require.Equal(t, map[string]int{"a1": 1, "a2": 0, "b1": 1}, attempts)
		require.Less(t, strings.Index(side.elements(), "a1"), strings.Index(side.elements(), "a2"))
	})
}

// What a timeout handler returns for an element that waits for its key leaves after the results of those before it.
func TestKeyOrderedTimeoutHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, setup{timeout: 10 * time.Second, wrap: func(h *hand) function {
			return timeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
				if in == "a1" {
					time.Sleep(5 * time.Second)
				}
				return []string{in + " is late"}, nil
			})
		}})
		r.send("a1")
		r.advance(time.Second)
		r.send("a2")
		r.advance(time.Minute)
		require.Equal(t, "a1 is late@15s a2 is late@15s", r.outputTimes())
		require.NoError(t, r.end())
	})
}

// A blocking call that outlives its timeout keeps its key until it returns, and its permit; it does not keep its element.
func TestKeyOrderedBlockingCallThatOutlivesItsTimeout(t *testing.T) {
	for name, around := range map[string]func(function) function{
		"bare": func(fn function) function { return fn }, "wrapped": func(fn function) function { return &wrapper{fn} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newKeyRig(t, setup{
					timeout: 10 * time.Second, wrap: func(h *hand) function { return around(blockingHand(h, true)) },
					opts: options(asyncop.WithDropOnFailure()),
				})
				r.send("a1")
				r.advance(9 * time.Second)
				r.send("a2", "b1")
				r.complete("b1#1", "B1")
				r.advance(5 * time.Second)
				require.EqualValues(t, 1, r.stats().Dropped)
				require.Equal(t, "a1#1 b1#1", r.calls())
				s := r.stats()
				require.EqualValues(t, 1, s.WaitingForKey)
				require.EqualValues(t, 1, s.Running)
				r.complete("a1#1", "late")
				require.Equal(t, "a1#1@0s b1#1@9s a2#1@14s", r.callTimes())
				r.complete("a2#1", "A2")
				require.Equal(t, "B1 A2", r.outputs())
				require.Zero(t, r.stats().Running)
				require.NoError(t, r.end())
			})
		})
	}
}

// The same for a call that outlives its attempt: the retry waits for it, too.
func TestKeyOrderedRetryWaitsForItsOwnCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), wrap: func(h *hand) function { return blockingHand(h, true) },
			opts: options(asyncop.WithAttemptTimeout(5 * time.Second)),
		})
		r.send("a1", "a2")
		r.advance(20 * time.Second)
		require.Equal(t, "a1#1@0s", r.callTimes())
		require.EqualValues(t, 1, r.stats().WaitingForRetry)
		r.complete("a1#1", "late")
		r.complete("a1#2", "A1")
		r.complete("a2#1", "A2")
		require.Equal(t, "a1#1@0s a1#2@20s a2#1@20s", r.callTimes())
		require.Equal(t, "A1 A2", r.outputs())
		require.NoError(t, r.end())
	})
}

// Law A5: at the end of the input all that wait for their key are called, one after the other; retries are cut.
func TestKeyOrderedEndOfInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, setup{timeout: time.Hour, strategy: retryAll(9, time.Minute), wrap: func(h *hand) function {
			h.answer = upper
			h.script("a1#1", empty)
			h.script("a1#2", empty)
			h.script("a2#1", empty)
			return h
		}})
		r.send("a1", "a2", "a3", "b1")
		require.Equal(t, "a1#1 b1#1", r.calls())
		require.NoError(t, r.end())
		require.Equal(t, "a1#1 b1#1 a1#2 a2#1 a3#1", r.calls())
		require.Equal(t, "B1 A3", r.outputs())
		require.EqualValues(t, 2, r.stats().CutByEndOfInput)
	})
}

// A cancel abandons what waits for its key.
func TestKeyOrderedCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		side := newSideSink(false)
		r := newKeyRig(t, setup{opts: options(asyncop.WithFailureSink(side.take))})
		r.send("a1", "a2", "b1")
		var err *asyncop.AbandonedError
		require.ErrorAs(t, r.cut(errBroken), &err)
		require.Equal(t, 3, err.Abandoned)
		require.Equal(t, "a1 a2 b1", side.elements())
		require.Equal(t, "a1#1 b1#1", r.calls())
		checkBalance(t, r.stats())
		require.Zero(t, r.stats().WaitingForKey)
	})
}

// When so many elements of a key wait, nothing more is read until one of them starts.
func TestMaxWaitingPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, setup{opts: options(asyncop.WithMaxWaitingPerKey(2), asyncop.WithBuffer(10))})
		r.send("a1", "a2", "a3", "b1", "a4", "c1")
		require.EqualValues(t, 3, r.stats().Accepted)
		require.EqualValues(t, 2, r.stats().WaitingForKey)
		r.complete("a1#1", "A1")
		require.Equal(t, "a1#1 a2#1 b1#1", r.calls())
		require.EqualValues(t, 5, r.stats().Accepted)
		r.complete("a2#1", "A2")
		require.Equal(t, "a1#1 a2#1 b1#1 a3#1 c1#1", r.calls())
		for _, name := range []string{"b1#1", "c1#1", "a3#1", "a4#1"} {
			r.complete(name, name)
		}
		require.NoError(t, r.end())
	})
}

// The same where the operator takes what is at hand: it leaves the rest in the input.
func TestMaxWaitingPerKeyOfResultsOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var op *operator
		most := int64(0)
		op = asyncop.KeyOrderedWait(asyncop.Blocking(func(_ context.Context, in string) (string, error) {
			time.Sleep(time.Second)
			most = max(most, op.Stats().InFlight)
			return in, nil
		}), firstLetter, time.Minute, 10, nil, asyncop.WithMaxWaitingPerKey(1))
		n := 0
		for _, err := range op.ResultsOf(asyncop.FromSlice([]string{"a1", "a2", "a3", "a4", "a5"})) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 5, n)
		require.EqualValues(t, 2, most)
	})
}

// Laws C1, C3 and K1: a checkpoint has what waits for its key, in input order, and restored elements wait behind those before
// them, back-off included. A barrier gets past a busy key.
func TestKeyOrderedCheckpoints(t *testing.T) {
	for _, most := range []int{0, 1} {
		t.Run(fmt.Sprintf("most=%d", most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := setup{key: firstLetter, timeout: time.Minute, strategy: retryAll(9, 10*time.Second), state: asyncop.State[string, string]{Results: codec.Default[string]()}}
				if most > 0 {
					s.opts = append(s.opts, asyncop.WithMaxWaitingPerKey(most))
				}
				store := checkpointtest.NewMemoryStore()
				s.blocked = true
				s.opts = append(s.opts, asyncop.WithBuffer(0))
				r := newCheckRig(t, keyMode, s, store)
				go func() { // in a flow without buffers
					for _, e := range []any{"b1", "a1", "b2", "a2", mark(1), "a3"} {
						r.op.In() <- e
					}
				}()
				synctest.Wait()
				r.complete("b1#1", "B1")
				r.fail("a1#1", errBroken)
				r.advance(4 * time.Second)
				b, done := r.trigger(checkpoint.Periodic)
				r.send(b)
				r.unblock() // the barrier leaves before what is in flight
				require.NoError(t, <-done)
				require.Equal(t, "b1#1=[B1] a1#1 b2 a2 |1| a3", stateIn(t, store, codec.Default[string]()))
				_ = r.cut(errBroken)

				s.blocked = false
				again := newCheckRig(t, keyMode, s, store.Reopen())
				again.advance(6*time.Second - 1)
				require.Equal(t, "b2#1", again.calls())
				require.Equal(t, "B1", again.outputs())
				again.advance(1)
				require.Equal(t, "b2#1@0s a1#1@6s", again.callTimes())
				for _, name := range []string{"a1#1", "a2#1", "a3#1", "b2#1"} {
					again.complete(name, name)
				}
				require.Equal(t, "B1 a1#1 a2#1 b2#1 |1| a3#1", again.outputs())
			})
		})
	}
}

// The state of an operator without key order is good for one with it, and the other way round.
func TestKeyOrderCanBeTurnedOnAndOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, keyMode, setup{}, store)
		r.send("a1", "a2", "b1")
		require.Equal(t, "a1#1 a2#1 b1#1", r.calls())
		r.save()
		_ = r.cut(errBroken)

		store = store.Reopen()
		keyed := newCheckRig(t, keyMode, setup{key: firstLetter}, store)
		synctest.Wait()
		require.Equal(t, "a1#1 b1#1", keyed.calls())
		keyed.save()
		require.Equal(t, "a1 a2 b1", stateIn(t, store, nil))
		_ = keyed.cut(errBroken)

		again := newCheckRig(t, keyMode, setup{}, store.Reopen())
		synctest.Wait()
		require.Equal(t, "a1#1 a2#1 b1#1", again.calls())
	})
}

// A clean end by a checkpoint's Drain calls all that wait for their key first.
func TestKeyOrderedDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCheckRig(t, keyMode, setup{key: firstLetter}, nil)
		r.send("a1", "a2")
		b, done := r.trigger(checkpoint.Drain)
		r.send(b)
		r.complete("a1#1", "A1")
		r.complete("a2#1", "A2")
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
		require.Equal(t, "A1 A2 <end> <2>", r.outputs())
	})
}

// Law A6: a key function that panics, and a key that has no order, fail their element and nothing else.
func TestKeysThatBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(in string) any {
			switch in {
			case "panic":
				panic("no key")
			case "NaN":
				return math.NaN()
			case "slice":
				return []string{in}
			}
			return in[:1]
		}
		failures := map[string]error{}
		op := asyncop.KeyOrderedWait(asyncop.Func(func(_ context.Context, in string, result future) error {
			result.Complete(in)
			return nil
		}), key, time.Minute, 10, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithFailureSink(func(_ context.Context, f failure) error { failures[f.Element] = f.Err; return nil }))
		var got []string
		for v, err := range op.Results(slices.Values([]string{"a1", "panic", "a2", "NaN", "slice", "b1"})) {
			require.NoError(t, err)
			got = append(got, v)
		}
		require.Equal(t, []string{"a1", "a2", "b1"}, got)
		var panicked *asyncop.PanicError
		require.ErrorAs(t, failures["panic"], &panicked)
		require.Equal(t, "no key", panicked.Value)
		require.ErrorContains(t, failures["NaN"], "unusable key NaN")
		require.ErrorContains(t, failures["slice"], "unusable key of type []string")
		require.Len(t, failures, 3)

		// By default the first failure fails the operator.
		op = asyncop.KeyOrderedWait(newHand(t), func(string) float64 { return math.NaN() }, 0, 1, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for range op.Results(slices.Values([]string{"a"})) {
			continue
		}
		var failed *asyncop.ElementError
		require.ErrorAs(t, op.Err(), &failed)
		require.ErrorContains(t, failed.Err, "unusable key NaN")
		require.Zero(t, failed.Attempts)
	})
}

// Law K1 for each way to drive an operator, with calls of all lengths, retries and failures: calls of a key do not overlap, and
// its results come in input order; keys go on beside each other.
func TestKeyOrderUnderEveryDriver(t *testing.T) {
	const keys, n = 5, 300
	for _, driver := range []string{"flow", "Results", "ResultsOf"} {
		for _, blocking := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/blocking=%v", driver, blocking), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(1, uint64(len(driver))))
					var mu sync.Mutex
					running, last, most := map[int]int{}, map[int]int{}, 0
					call := func(in, attempt int) (int, error) {
						mu.Lock()
						running[in%keys]++
						most = max(most, len(running))
						if running[in%keys] > 1 {
							t.Errorf("two calls of key %d at a time", in%keys)
						}
						if in < last[in%keys] {
							t.Errorf("%d after %d", in, last[in%keys])
						}
						last[in%keys] = in
						how, d := random.IntN(10), time.Duration(random.IntN(20))*time.Millisecond
						mu.Unlock()
						time.Sleep(d) // its own time, not that of the attempt
						mu.Lock()
						defer mu.Unlock()
						if running[in%keys]--; running[in%keys] == 0 {
							delete(running, in%keys)
						}
						if how < 3 && attempt < 3 {
							return 0, errBroken
						}
						return in, nil
					}
					fn := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
						attempt := asyncop.AttemptFromContext(ctx)
						go func() {
							if out, err := call(in, attempt); err != nil {
								result.CompleteExceptionally(err)
							} else {
								result.Complete(out)
							}
						}()
						return nil
					})
					opts := options(asyncop.WithMaxConcurrentCalls(4), asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithDrainRetries())
					if blocking { // and calls that outlive their attempts
						fn = asyncop.Blocking(func(ctx context.Context, in int) (int, error) { return call(in, asyncop.AttemptFromContext(ctx)) })
						opts = append(opts, asyncop.WithAttemptTimeout(15*time.Millisecond))
					}
					op := asyncop.KeyOrderedWait(fn, func(in int) int { return in % keys }, time.Hour, 50,
						retryAllOf[int](100, 3*time.Millisecond), opts...)
					var input []int
					for i := range n {
						input = append(input, i)
					}
					came, next := 0, map[int]int{}
					saw := func(v int) {
						if v < next[v%keys] {
							t.Errorf("%d after %d", v, next[v%keys])
						}
						next[v%keys] = v
						came++
					}
					switch driver {
					case "flow":
						go func() {
							for _, v := range input {
								op.In() <- v
							}
							close(op.In())
						}()
						for v := range op.Out() {
							saw(v.(int))
						}
					case "Results":
						for v, err := range op.Results(slices.Values(input)) {
							require.NoError(t, err)
							saw(v)
						}
					case "ResultsOf":
						for v, err := range op.ResultsOf(asyncop.FromSlice(input)) {
							require.NoError(t, err)
							saw(v)
						}
					}
					require.NoError(t, op.Wait())
					require.Equal(t, n, came)
					require.Equal(t, 4, most, "keys do not wait for each other")
				})
			})
		}
	}
}

func TestKeyOrderRefusesNonsense(t *testing.T) {
	fn := newHand(t)
	for want, f := range map[string]func(){
		"asyncop: KeyOrderedWait: nil key function": func() { asyncop.KeyOrderedWait[string](fn, nil, 0, 1, nil) },
		"asyncop: KeyOrderedWait: nil function":     func() { asyncop.KeyOrderedWait(function(nil), firstLetter, 0, 1, nil) },
		"asyncop: KeyOrderedWait: capacity must be at least 1, got 0": func() {
			asyncop.KeyOrderedWait(function(fn), firstLetter, time.Second, 0, strategy(retryAll(1, 0)))
		},
		"asyncop: WithMaxWaitingPerKey: must be at least 1, got 0":  func() { asyncop.WithMaxWaitingPerKey(0) },
		"asyncop: OrderedWait: WithMaxWaitingPerKey needs KeyOrder": func() { asyncop.OrderedWait(function(fn), 0, 1, asyncop.WithMaxWaitingPerKey(1)) },
	} {
		require.Contains(t, panicOf(f), want)
	}
}

// A batch has at most one element of a key; members wait as others do. A call keeps the keys of its members until it returns.
func TestKeyOrderedBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := newBulk(t, keyMode, 10, 10*time.Millisecond, setup{
			key: firstLetter, timeout: 5 * time.Second, strategy: retryAll(2, time.Second), opts: options(asyncop.WithDropOnFailure()),
		})
		r.send("a1", "a2", "b1")
		r.advance(10 * time.Millisecond)
		require.Equal(t, "a1#1+b1#1@10ms", b.times())
		b.answers("a1#1+b1#1", "! B1")
		r.advance(1010 * time.Millisecond)
		b.answers("a1#2", "A1")
		r.advance(10 * time.Millisecond)
		require.Equal(t, "a1#1+b1#1@10ms a1#2@1.02s a2#1@1.03s", b.times())
		r.send("a3")
		r.advance(4 * time.Second)
		require.EqualValues(t, 1, r.stats().Dropped, "a2")
		require.EqualValues(t, 1, r.stats().WaitingForKey, "a3")
		b.answers("a2#1", "late")
		r.advance(10 * time.Millisecond)
		require.Equal(t, "a1#1+b1#1@10ms a1#2@1.02s a2#1@1.03s a3#1@5.04s", b.times())
		b.answers("a3#1", "A3")
		require.Equal(t, "B1 A1 A3", r.outputs())
		require.NoError(t, r.end())
	})
}
