package delivery_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func logTo(log *bytes.Buffer) delivery.QueueOption {
	return delivery.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
}

// leave puts messages of the key k as an earlier version of weir has left them: 0 waits
// in a layer, and 1 to 4 wait behind it. 5 to 7 were not received yet.
func leave(t *testing.T, engine store.Store) {
	t.Helper()
	require.NoError(t, engine.Put(t.Context(), "jobs-retry-1", inLayer("0", 1, 20*time.Minute)))
	for i := 1; i <= 4; i++ {
		require.NoError(t, engine.Put(t.Context(), "jobs-blocked", inLayer(fmt.Sprint(i), 0, 0)))
	}
	for i := 5; i <= 7; i++ {
		require.NoError(t, engine.Put(t.Context(), "jobs", inLayer(fmt.Sprint(i), 0, 0)))
	}
}

func requireEmpty(t *testing.T, engine store.Inspector) {
	t.Helper()
	queues, err := engine.Queues(t.Context())
	require.NoError(t, err)
	require.Empty(t, queues)
}

// The messages that an earlier version has left in a layer, and behind others of their
// key, go before those of the queue, also if they fail again. Other keys do not wait.
func TestWithOrdered_MessagesOfAnEarlierVersion(t *testing.T) {
	for name, fails := range map[string]string{"none fails": "", "one of the layer": "0", "one left behind it": "2", "one of the queue": "5"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				leave(t, engine)
				q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour), delivery.WithOrdered(), noLog)
				require.NoError(t, q.Put(t.Context(), "other", delivery.ID("other"), delivery.Key("o")))
				failed := 0
				visits := inOrder(t, q, 5*time.Hour, func(_ context.Context, j job) error {
					if string(j) != fails || failed > 0 {
						return nil
					}
					failed++
					return errBusy
				})
				want := []string{"other", "0", "1", "2", "3", "4", "5", "6", "7"}
				if fails != "" {
					want = strings.Fields(strings.Replace(strings.Join(want, " "), fails, fails+" "+fails, 1))
				}
				require.Equal(t, want, visits)
				requireEmpty(t, engine)
			})
		})
	}
}

// A message that waits for an earlier one is delivered soon after that is done, and does
// not count as visited or lapsed meanwhile.
func TestWithOrdered_WaitForAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		leave(t, engine)
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), delivery.WithOrdered(), noLog)
		begun := time.Now()
		var last time.Duration
		inOrder(t, q, time.Hour, func(ctx context.Context, j job) error {
			meta, _ := message.MetaFromContext(ctx)
			if j != "0" && meta.Visit != 1 {
				t.Errorf("%s is at visit %d", j, meta.Visit)
			}
			last = time.Since(begun)
			return nil
		})
		require.Greater(t, last, 20*time.Minute)
		require.Less(t, last, 21*time.Minute)
		requireEmpty(t, engine)
	})
}

// A purge of the message in the layer frees the messages behind it, and so does a person
// who makes it due.
func TestWithOrdered_RepairOfAnEarlierVersion(t *testing.T) {
	for name, repair := range map[string]func(t *testing.T, engine *memory.Engine){
		"purge": func(t *testing.T, engine *memory.Engine) {
			n, err := engine.Purge(t.Context(), "jobs-retry-1", store.Filter{})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		},
		"due": func(t *testing.T, engine *memory.Engine) {
			j, err := jobs.New(engine, jobs.Config{Logger: quiet})
			require.NoError(t, err)
			started, err := j.Start(t.Context(), jobs.Spec{Do: store.Due, Queue: "jobs-retry-1", By: "ann", Why: "test"})
			require.NoError(t, err)
			_, err = j.Run(t.Context(), started.ID, nil)
			require.NoError(t, err)
		},
		"set aside": func(t *testing.T, engine *memory.Engine) {
			taken, err := engine.Claim(t.Context(), "jobs-retry-1", store.Filter{}, store.Page{Max: 1}, time.Minute)
			require.NoError(t, err)
			require.NoError(t, engine.Release(t.Context(), 100*365*24*time.Hour, taken[0].Lease))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				leave(t, engine)
				q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), delivery.WithOrdered(), noLog)
				time.AfterFunc(time.Minute, func() { repair(t, engine) })
				visits := inOrder(t, q, 3*time.Minute, done)
				want := []string{"0", "1", "2", "3", "4", "5", "6", "7"}
				if name != "due" {
					want = want[1:]
				}
				require.Equal(t, want, visits)
			})
		})
	}
}

// An earlier version may be killed after it has handed a message over, and before it has
// acknowledged it. The message of the queue is recognised, and is not called twice. A
// second put under its id is another message (law W5).
func TestWithOrdered_CopyThatAnEarlierVersionHasLeft(t *testing.T) {
	for name, isCopy := range map[string]bool{"the same put": true, "another put": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				q := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
				require.NoError(t, q.Put(t.Context(), "0", delivery.ID("0"), delivery.Key("k")))
				ms, err := q.Receive(t.Context(), 1)
				require.NoError(t, err)
				left := inLayer("0", 0, 0)
				left.Meta.Put = ms[0].Meta().Put
				want := []string{"0"}
				if !isCopy {
					left.Meta.Put = "another"
					want = []string{"0", "0"}
				}
				require.NoError(t, engine.Put(t.Context(), "jobs-blocked", left))
				require.NoError(t, q.Close(t.Context()))
				after := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
				require.Equal(t, want, inOrder(t, after, time.Hour, done))
				requireEmpty(t, engine)
			})
		})
	}
}

// killed is the engine of a process that is killed at its n-th call: that call has no
// effect, and no later call has.
type killed struct {
	*memory.Engine

	mu   sync.Mutex
	left int
	kill func()
}

func (k *killed) call() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left--
	if k.left == 0 {
		k.kill()
	}
	if k.left <= 0 {
		return errBusy
	}
	return nil
}

func (k *killed) TakeInOrder(ctx context.Context, queue string, n int, lease time.Duration) ([]store.Leased, error) {
	err := k.call()
	if err != nil {
		return nil, err
	}
	return k.Engine.TakeInOrder(ctx, queue, n, lease)
}

func (k *killed) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	k.mu.Lock()
	isKilled := k.left <= 0
	k.mu.Unlock()
	if isKilled {
		return errBusy
	}
	return k.Engine.Extend(ctx, d, leases...)
}

func (k *killed) Release(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	err := k.call()
	if err != nil {
		return err
	}
	return k.Engine.Release(ctx, d, leases...)
}

func (k *killed) Done(ctx context.Context, leases ...store.Lease) error {
	err := k.call()
	if err != nil {
		return err
	}
	return k.Engine.Done(ctx, leases...)
}

func (k *killed) Replace(ctx context.Context, rs ...store.Replacement) error {
	err := k.call()
	if err != nil {
		return err
	}
	return k.Engine.Replace(ctx, rs...)
}

func (k *killed) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	err := k.call()
	if err != nil {
		return nil, err
	}
	return k.Engine.List(ctx, queue, f, p)
}

// Workers are killed at each of their calls in turn, while they deliver the messages of
// an earlier version. The calls that succeed are in order, and no message is lost. Only
// the message in flight at a kill may be called again.
func TestWithOrdered_KillsWithMessagesOfAnEarlierVersion(t *testing.T) {
	for at := 1; at <= 40; at++ {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			leave(t, engine)
			var called []string
			call := func(ctx context.Context, j job) error {
				meta, _ := message.MetaFromContext(ctx)
				if (j == "2" || j == "6") && meta.Visit == 1 {
					return errBusy
				}
				called = append(called, string(j))
				return nil
			}
			work := func(e store.Engine, d time.Duration, ctx context.Context) {
				q := delivery.NewQueue[job](e, "jobs", delivery.RetryAfter(time.Minute, time.Hour), delivery.WithOrdered(), noLog)
				ctx, stop := context.WithTimeout(ctx, d)
				defer stop()
				_, _ = delivery.Run(ctx, q, operate(q, func(ctx context.Context, j job) (string, error) { return "", call(ctx, j) }),
					sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently, delivery.WithDrain(0))
			}
			ctx, kill := context.WithCancel(t.Context())
			work(&killed{Engine: engine, left: at, kill: kill}, 30*time.Minute, ctx)
			kill()
			killedAfter := len(called)
			work(engine, 5*time.Hour, t.Context())
			if killedAfter > 0 && killedAfter < len(called) && called[killedAfter] == called[killedAfter-1] {
				called = append(called[:killedAfter], called[killedAfter+1:]...)
			}
			require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, called, "killed at call %d", at)
			requireEmpty(t, engine)
		})
	}
}

// A queue without WithOrdered delivers the messages at once, in any order, and logs that
// once. It finds the messages that a worker of the earlier version leaves later.
func TestQueue_MessagesLeftBehindOthers(t *testing.T) {
	for what, fair := range map[string][]delivery.QueueOption{"the oldest first": nil, "keys in rounds": {delivery.WithFairByKey(1)}} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			leave(t, engine)
			require.NoError(t, engine.Put(t.Context(), "other-jobs-blocked", inLayer("of another queue", 0, 0)))
			var log bytes.Buffer
			q := delivery.NewQueue[job](engine, "jobs", append(fair, delivery.RetryAfter(time.Hour), logTo(&log))...)
			time.AfterFunc(time.Minute, func() { // a worker of the earlier version still runs
				_ = engine.Put(context.Background(), "jobs-blocked", inLayer("8", 0, 0))
			})
			visits := inOrder(t, q, time.Hour, done)
			require.ElementsMatch(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8"}, visits, what)
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			require.Contains(t, log.String(), "does not have the option WithOrdered")
			require.Contains(t, log.String(), "queue=jobs-blocked")
			require.Len(t, entriesOf(t, engine, "other-jobs-blocked"), 1)
		})
	}
}

// A version without an order of keys may have left messages of a key in several layers.
// They are called one at a time, and a copy that it has left in the layer before is not
// called.
func TestWithOrdered_LayersOfAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		first, copied := inLayer("0", 2, 0), inLayer("0", 1, 0)
		first.Meta.Put, copied.Meta.Put = "put", "put"
		require.NoError(t, engine.Put(t.Context(), "jobs-retry-2", first))
		require.NoError(t, engine.Put(t.Context(), "jobs-retry-1", copied, inLayer("1", 1, 0)))
		require.NoError(t, engine.Put(t.Context(), "jobs", inLayer("2", 0, 0)))
		q := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
		var calls atomic.Int32
		visits := inOrder(t, q, time.Hour, func(context.Context, job) error {
			n := calls.Add(1)
			if n > 1 {
				t.Errorf("%d calls at a time", n)
			}
			time.Sleep(time.Second)
			calls.Add(-1)
			return nil
		})
		require.Equal(t, []string{"0", "1", "2"}, visits)
		requireEmpty(t, engine)
	})
}

// All keys of a queue of an earlier version are found, also behind many messages, behind
// messages that were set aside, and if the messages come after the start of the worker. A
// message without a key does not wait.
func TestWithOrdered_AllKeysOfAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		put := func(queue, key, id string, delay time.Duration) {
			m := inLayer(id, 0, delay)
			m.Meta.Key = key
			require.NoError(t, engine.Put(t.Context(), queue, m))
		}
		put("jobs-blocked", "k", "set aside", 0)
		taken, err := engine.Claim(t.Context(), "jobs-blocked", store.Filter{}, store.Page{Max: 1}, time.Minute)
		require.NoError(t, err)
		require.NoError(t, engine.Release(t.Context(), 100*365*24*time.Hour, taken[0].Lease))
		for i := range 600 {
			put("jobs-blocked", fmt.Sprint(i), "of another key", 0)
		}
		put("jobs-blocked", "k", "1", 20*time.Minute)
		put("jobs-blocked", "l", "2", 25*time.Minute)
		put("jobs-blocked", "", "5", 40*time.Minute)
		put("jobs", "k", "3", 0)
		put("jobs", "l", "4", 0)
		put("jobs", "", "0", 0)
		time.AfterFunc(time.Minute, func() { put("jobs-blocked", "m", "6", 50*time.Minute) })
		time.AfterFunc(10*time.Minute, func() { put("jobs", "m", "7", 0) })
		q := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
		visits := inOrder(t, q, 2*time.Hour, done)
		visits = slices.DeleteFunc(visits, func(id string) bool { return id == "of another key" })
		require.Equal(t, []string{"0", "1", "3", "2", "4", "5", "6", "7"}, visits)
	})
}

// Messages of a put with other ids, such as the parts of a message, are not copies.
func TestWithOrdered_PartsOfAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		for id, queue := range map[string]string{"0": "jobs-blocked", "1": "jobs"} {
			m := inLayer(id, 0, 0)
			m.Meta.Put = "put"
			require.NoError(t, engine.Put(t.Context(), queue, m))
		}
		q := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
		require.Equal(t, []string{"0", "1"}, inOrder(t, q, time.Hour, done))
	})
}

// keyBlind is an engine that cannot list the messages of a key for some time.
type keyBlind struct {
	*memory.Engine
	until time.Time
}

func (b keyBlind) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if f.Key != "" && time.Now().Before(b.until) {
		return nil, errBusy
	}
	return b.Engine.List(ctx, queue, f, p)
}

// A message waits if the engine cannot tell whether earlier ones are left.
func TestWithOrdered_ErrorOfALookForAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		leave(t, engine)
		var log bytes.Buffer
		q := delivery.NewQueue[job](keyBlind{engine, time.Now().Add(3 * time.Minute)}, "jobs", delivery.WithOrdered(), logTo(&log))
		visits := inOrder(t, q, time.Hour, done)
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, visits)
		require.Contains(t, log.String(), "cannot find out whether earlier messages of their keys are left")
	})
}

// slowRelease is an engine whose Release needs some time, as a database does.
type slowRelease struct{ *memory.Engine }

func (s slowRelease) Release(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	time.Sleep(10 * time.Millisecond)
	return s.Engine.Release(ctx, d, leases...)
}

// The messages that wait for an earlier queue do not keep the messages of that queue
// waiting, even if a worker cannot put all of them off before the first is due again.
func TestWithOrdered_ManyKeysOfAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		const keys = 1000
		put := func(queue, prefix string) {
			for i := range keys {
				m := inLayer(prefix+fmt.Sprint(i), 0, 0)
				m.Meta.Key = fmt.Sprint(i)
				require.NoError(t, engine.Put(t.Context(), queue, m))
			}
		}
		put("jobs-blocked", "a")
		put("jobs", "b")
		q := delivery.NewQueue[job](slowRelease{engine}, "jobs", delivery.WithOrdered(), noLog)
		begun := time.Now()
		var mu sync.Mutex
		var first, last time.Duration
		visits := inOrder(t, q, 10*time.Minute, func(context.Context, job) error {
			mu.Lock()
			defer mu.Unlock()
			last = time.Since(begun)
			if first == 0 {
				first = last
			}
			return nil
		})
		require.LessOrEqual(t, first, 2*time.Second)
		require.Less(t, last, time.Minute)
		require.Len(t, visits, 2*keys)
		at := map[string]int{}
		for i, id := range visits {
			at[id] = i
		}
		for i := range keys {
			require.Less(t, at[fmt.Sprint("a", i)], at[fmt.Sprint("b", i)], "key %d", i)
		}
		requireEmpty(t, engine)
	})
}

// blind is an engine that cannot list its messages for some time.
type blind struct {
	*memory.Engine
	until time.Time
}

func (b blind) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if time.Now().Before(b.until) {
		return nil, errBusy
	}
	return b.Engine.List(ctx, queue, f, p)
}

// New messages wait until a worker has found the keys of the messages that an earlier
// version has left.
func TestWithOrdered_KeysOfAnEarlierVersionAreNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		leave(t, engine)
		q := delivery.NewQueue[job](blind{engine, time.Now().Add(3 * time.Minute)}, "jobs", delivery.WithOrdered(), noLog)
		visits := inOrder(t, q, time.Hour, done)
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, visits)
	})
}

// In a rollout, workers without WithOrdered and with it share a queue for a while. Each
// message is done once.
func TestWithOrdered_Rollout(t *testing.T) {
	ordered := []delivery.QueueOption{delivery.WithOrdered()}
	for what, versions := range map[string][2][]delivery.QueueOption{"adds": {nil, ordered}, "drops": {ordered, nil}} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			version := func(order []delivery.QueueOption) *delivery.Queue[job] {
				return delivery.NewQueue[job](engine, "jobs", append(order, delivery.RetryAfter(5*time.Second, time.Minute), noLog)...)
			}
			before, after := version(versions[0]), version(versions[1])
			var mu sync.Mutex
			got, want := map[job]int{}, map[job]int{}
			call := func(ctx context.Context, j job) error {
				meta, _ := message.MetaFromContext(ctx)
				time.Sleep(100 * time.Millisecond)
				if len(j)%3 == meta.Visit { // of three messages, one fails once, and another fails at its second visit
					return errBusy
				}
				mu.Lock()
				defer mu.Unlock()
				got[j]++
				return nil
			}
			var workers sync.WaitGroup
			workers.Go(func() { inOrder(t, before, 3*time.Minute, call) })
			workers.Go(func() {
				time.Sleep(time.Minute)
				inOrder(t, after, time.Hour, call)
			})
			for i := range 400 {
				j := job(strings.Repeat("j", i+1))
				require.NoError(t, before.Put(t.Context(), j, delivery.ID(fmt.Sprint(i)), delivery.Key(fmt.Sprint(i%10))))
				want[j] = 1
				time.Sleep(500 * time.Millisecond)
			}
			workers.Wait()
			require.Equal(t, want, got, what)
			requireEmpty(t, engine)
		})
	}
}
