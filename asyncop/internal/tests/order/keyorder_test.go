package order_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/codec"
)

func newKeyRig(t *testing.T, s optest.Setup) *optest.Rig {
	t.Helper()
	s.Key = optest.FirstLetter
	return optest.NewRig(t, optest.KeyMode, s)
}

// Elements of a key are called one after another, back-off included. Keys do not wait for
// each other.
func TestKeyOrderedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second)})
		r.Send("a1", "a2", "b1", "a3")
		require.Equal(t, "a1#1 b1#1", r.Calls())
		require.EqualValues(t, 2, r.Stats().WaitingForKey)
		r.Advance(time.Second)
		r.Fail("a1#1", optest.ErrBroken)
		r.Complete("b1#1", "B1")
		r.Advance(time.Second)
		require.Equal(t, "a1#1@0s b1#1@0s a1#2@2s", r.CallTimes())
		r.Complete("a1#2", "A1")
		r.Complete("a2#1", "A2")
		r.Advance(time.Second)
		r.Complete("a3#1", "A3")
		require.Equal(t, "B1@1s A1@2s A2@2s A3@3s", r.OutputTimes())
		require.NoError(t, r.End())
	})
}

// A blocking call that outlives its timeout keeps its key and its permit until it
// returns. It does not keep its element.
func TestKeyOrderedBlockingCallThatOutlivesItsTimeout(t *testing.T) {
	for name, around := range map[string]func(optest.Function) optest.Function{
		"bare": func(fn optest.Function) optest.Function { return fn }, "wrapped": func(fn optest.Function) optest.Function { return &optest.Wrapper{Inner: fn} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newKeyRig(t, optest.Setup{
					Timeout: 10 * time.Second, Wrap: func(h *optest.Hand) optest.Function { return around(optest.BlockingHand(h, true)) },
					Opts: optest.Options(asyncop.WithDropOnFailure()),
				})
				r.Send("a1")
				r.Advance(9 * time.Second)
				r.Send("a2", "b1")
				r.Complete("b1#1", "B1")
				r.Advance(5 * time.Second)
				require.EqualValues(t, 1, r.Stats().Dropped)
				require.Equal(t, "a1#1 b1#1", r.Calls())
				s := r.Stats()
				require.EqualValues(t, 1, s.WaitingForKey)
				require.EqualValues(t, 1, s.Running)
				r.Complete("a1#1", "late")
				require.Equal(t, "a1#1@0s b1#1@9s a2#1@14s", r.CallTimes())
				r.Complete("a2#1", "A2")
				require.Equal(t, "B1 A2", r.Outputs())
				require.Zero(t, r.Stats().Running)
				require.NoError(t, r.End())
			})
		})
	}
}

// The same applies where the operator takes the elements that are ready: it leaves the
// rest in the input.
func TestWithMaxWaitingPerKey_ResultsOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var op *optest.Operator
		most := int64(0)
		op = asyncop.KeyOrderedWait(asyncop.Blocking(func(_ context.Context, in string) (string, error) {
			time.Sleep(time.Second)
			most = max(most, op.Stats().InFlight)
			return in, nil
		}), optest.FirstLetter, time.Minute, 10, nil, asyncop.WithMaxWaitingPerKey(1))
		n := 0
		for _, err := range op.ResultsOf(asyncop.FromSlice([]string{"a1", "a2", "a3", "a4", "a5"})) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 5, n)
		require.EqualValues(t, 2, most)
	})
}

// Laws C1, C3 and K1: a checkpoint has the elements that wait for their key, in input
// order, and restored elements wait behind their predecessors, back-off included. A
// barrier passes a busy key.
func TestKeyOrderedCheckpoints(t *testing.T) {
	for _, most := range []int{0, 1} {
		t.Run(fmt.Sprintf("most=%d", most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := optest.Setup{Key: optest.FirstLetter, Timeout: time.Minute, Strategy: optest.RetryAll(9, 10*time.Second), State: asyncop.State[string, string]{Results: codec.Default[string]()}}
				if most > 0 {
					s.Opts = append(s.Opts, asyncop.WithMaxWaitingPerKey(most))
				}
				store := checkpointtest.NewMemoryStore()
				s.Blocked = true
				s.Opts = append(s.Opts, asyncop.WithBuffer(0))
				r := optest.NewCheckRig(t, optest.KeyMode, s, store)
				go func() { // a flow without buffers
					for _, e := range []any{"b1", "a1", "b2", "a2", optest.Mark(1), "a3"} {
						r.Op.In() <- e
					}
				}()
				synctest.Wait()
				r.Complete("b1#1", "B1")
				r.Fail("a1#1", optest.ErrBroken)
				r.Advance(4 * time.Second)
				b, done := r.Trigger(checkpoint.Periodic)
				r.Send(b)
				r.Unblock() // the barrier leaves before the elements in flight
				require.NoError(t, <-done)
				require.Equal(t, "b1#1=[B1] a1#1 b2 a2 |1| a3", optest.StateIn(t, store, codec.Default[string]()))
				_ = r.Cut(optest.ErrBroken)

				s.Blocked = false
				again := optest.NewCheckRig(t, optest.KeyMode, s, store.Reopen())
				again.Advance(6*time.Second - 1)
				require.Equal(t, "b2#1", again.Calls())
				require.Equal(t, "B1", again.Outputs())
				again.Advance(1)
				require.Equal(t, "b2#1@0s a1#1@6s", again.CallTimes())
				for _, name := range []string{"a1#1", "a2#1", "a3#1", "b2#1"} {
					again.Complete(name, name)
				}
				require.Equal(t, "B1 a1#1 a2#1 b2#1 |1| a3#1", again.Outputs())
			})
		})
	}
}

// The state of an operator without key order can be restored by one with key order, and
// vice versa.
func TestKeyOrderCanBeTurnedOnAndOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		r := optest.NewCheckRig(t, optest.KeyMode, optest.Setup{}, store)
		r.Send("a1", "a2", "b1")
		require.Equal(t, "a1#1 a2#1 b1#1", r.Calls())
		r.Save()
		_ = r.Cut(optest.ErrBroken)

		store = store.Reopen()
		keyed := optest.NewCheckRig(t, optest.KeyMode, optest.Setup{Key: optest.FirstLetter}, store)
		synctest.Wait()
		require.Equal(t, "a1#1 b1#1", keyed.Calls())
		keyed.Save()
		require.Equal(t, "a1 a2 b1", optest.StateIn(t, store, nil))
		_ = keyed.Cut(optest.ErrBroken)

		again := optest.NewCheckRig(t, optest.KeyMode, optest.Setup{}, store.Reopen())
		synctest.Wait()
		require.Equal(t, "a1#1 a2#1 b1#1", again.Calls())
	})
}

// A clean end by the Drain of a checkpoint first calls all elements that wait for their
// key.
func TestKeyOrderedDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := optest.NewCheckRig(t, optest.KeyMode, optest.Setup{Key: optest.FirstLetter}, nil)
		r.Send("a1", "a2")
		b, done := r.Trigger(checkpoint.Drain)
		r.Send(b)
		r.Complete("a1#1", "A1")
		r.Complete("a2#1", "A2")
		require.NoError(t, r.Finish(done))
		require.NoError(t, r.Wait())
		require.Equal(t, "A1 A2 <end> <2>", r.Outputs())
	})
}

// Law A6: a key function that panics fails its element only, and so does a key that is
// not equal to itself or not comparable.
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
		op := asyncop.KeyOrderedWait(asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			result.Complete(in)
			return nil
		}), key, time.Minute, 10, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithFailureSink(func(_ context.Context, f optest.Failure) error { failures[f.Element] = f.Err; return nil }))
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
		op = asyncop.KeyOrderedWait(optest.NewHand(t), func(string) float64 { return math.NaN() }, 0, 1, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for range op.Results(slices.Values([]string{"a"})) {
			continue
		}
		var failed *asyncop.ElementError
		require.ErrorAs(t, op.Err(), &failed)
		require.ErrorContains(t, failed.Err, "unusable key NaN")
		require.Zero(t, failed.Attempts)
	})
}

// Law K1 for each driver of an operator, with calls of different lengths, retries and
// failures: calls of a key do not overlap, and its results come in input order. Different
// keys run concurrently.
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
						time.Sleep(d) // the duration of the call, not of the attempt
						mu.Lock()
						defer mu.Unlock()
						if running[in%keys]--; running[in%keys] == 0 {
							delete(running, in%keys)
						}
						if how < 3 && attempt < 3 {
							return 0, optest.ErrBroken
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
					opts := optest.Options(asyncop.WithMaxConcurrentCalls(4), asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithDrainRetries())
					if blocking { // and calls that outlive their attempts
						fn = asyncop.Blocking(func(ctx context.Context, in int) (int, error) { return call(in, asyncop.AttemptFromContext(ctx)) })
						opts = append(opts, asyncop.WithAttemptTimeout(15*time.Millisecond))
					}
					op := asyncop.KeyOrderedWait(fn, func(in int) int { return in % keys }, time.Hour, 50,
						optest.RetryAllOf[int](100, 3*time.Millisecond), opts...)
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
	fn := optest.NewHand(t)
	for want, f := range map[string]func(){
		"asyncop: KeyOrderedWait: nil key function": func() { asyncop.KeyOrderedWait[string](fn, nil, 0, 1, nil) },
		"asyncop: KeyOrderedWait: nil function":     func() { asyncop.KeyOrderedWait(optest.Function(nil), optest.FirstLetter, 0, 1, nil) },
		"asyncop: KeyOrderedWait: capacity must be at least 1, got 0": func() {
			asyncop.KeyOrderedWait(optest.Function(fn), optest.FirstLetter, time.Second, 0, optest.Strategy(optest.RetryAll(1, 0)))
		},
		"asyncop: WithMaxWaitingPerKey: must be at least 1, got 0":  func() { asyncop.WithMaxWaitingPerKey(0) },
		"asyncop: OrderedWait: WithMaxWaitingPerKey needs KeyOrder": func() { asyncop.OrderedWait(optest.Function(fn), 0, 1, asyncop.WithMaxWaitingPerKey(1)) },
	} {
		require.Contains(t, optest.PanicOf(f), want)
	}
}
