package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var noLog = delivery.WithLogger(slog.New(slog.DiscardHandler))

// job is the value of the queues in these tests. It may be called twice.
type job string

func (job) Idempotent() bool { return true }

// operate is an operator without short retries.
func operate(q *delivery.Queue[job], f func(context.Context, job) (string, error)) *asyncop.AsyncWaitOperator[job, string] {
	return asyncop.UnorderedWaitWithRetry(asyncop.Blocking(f), time.Minute, 10,
		strategies.FixedDelay[string](0, time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
}

func entriesOf(t *testing.T, engine *memory.Engine, queue string) []store.Entry {
	t.Helper()
	entries, err := engine.List(t.Context(), queue, store.Filter{}, store.Page{Max: 1000})
	require.NoError(t, err)
	return entries
}

// The source of a queue obeys the rules of all sources, with layers or without.
func TestQueueIsASource(t *testing.T) {
	for _, opts := range [][]delivery.QueueOption{nil, {delivery.RetryAfter(time.Minute)}} {
		deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
			t.Parallel() // the rules wait
			n := 0
			q := delivery.NewQueue[string](memory.Open(), "q", append(opts, delivery.WithLease(600*time.Millisecond), noLog)...)
			return deliverytest.Queue[string]{
				Open: func() (delivery.Source[string], error) { return q.Source(nil), nil },
				Put: func(values ...string) (err error) {
					for _, v := range values {
						n++
						err = errors.Join(err, q.Put(t.Context(), v, delivery.ID(fmt.Sprint(n))))
					}
					return err
				},
				Keeps: true, Shared: true, Lease: 600 * time.Millisecond,
			}
		}, func(i int) string { return fmt.Sprint("value ", i) })
	}
}

// A worker from a queue to a queue: failures go through the layers to the dead letters.
// Their names follow from the name of the queue (law W1).
func TestQueueOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour), noLog)
		results := delivery.NewQueue[string](engine, "results")
		for _, id := range []string{"good", "later", "never", "refused"} {
			require.NoError(t, jobs.Put(t.Context(), job(id), delivery.ID(id)))
			require.NoError(t, jobs.Put(t.Context(), job(id), delivery.ID(id)), "again changes nothing")
		}
		require.NoError(t, jobs.Put(t.Context(), "delayed", delivery.ID("delayed"), delivery.After(30*time.Minute), delivery.Key("k")))
		begun := time.Now()
		var mu sync.Mutex
		at := map[string]time.Duration{}
		ctx, stop := context.WithCancel(t.Context())
		op := operate(jobs, func(ctx context.Context, j job) (string, error) {
			meta, _ := message.MetaFromContext(ctx)
			mu.Lock()
			at[fmt.Sprint(j, " ", meta.Visit)] = time.Since(begun).Round(time.Minute)
			mu.Unlock()
			switch {
			case j == "later" && meta.Visit < 3, j == "never":
				return "", errBusy
			case j == "refused":
				return "", predicates.WithReason(errors.New("no"), predicates.NewRejection("NO"))
			}
			return string(j) + " done", nil
		})
		time.AfterFunc(2*time.Hour, stop)
		_, err := delivery.Run(ctx, jobs, op, results, silently, delivery.WithFloodGuard(1, 100))
		require.NoError(t, err)

		got := map[string]string{}
		for _, e := range entriesOf(t, engine, "results") {
			got[e.Meta.ID] = string(e.Payload)
		}
		require.Equal(t, map[string]string{"good": `"good done"`, "later": `"later done"`, "delayed": `"delayed done"`}, got)
		require.GreaterOrEqual(t, at["later 2"], time.Minute)
		require.GreaterOrEqual(t, at["later 3"], time.Hour)
		require.Equal(t, 30*time.Minute, at["delayed 1"], "law D3")
		dead := map[string]store.Cause{}
		for _, e := range entriesOf(t, engine, jobs.DeadLetters()) {
			dead[e.Meta.ID] = e.Cause
		}
		require.Equal(t, map[string]store.Cause{"never": store.Exhausted, "refused": store.Permanent}, dead)
		counts, err := jobs.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, delivery.QueueCounts{Dead: 2}, counts)
		counts, err = results.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, counts.Waiting)
	})
}

// A message past its deadline is not called. A message whose next visit would be after
// its deadline does not wait.
func TestDeadline_KeptByQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour), noLog)
		deadline := func(d time.Duration) delivery.PutOption { return delivery.Deadline(time.Now().Add(d)) }
		require.NoError(t, jobs.Put(t.Context(), "late", delivery.ID("late"), deadline(time.Minute), delivery.After(2*time.Minute)))
		require.NoError(t, jobs.Put(t.Context(), "fails", delivery.ID("fails"), deadline(10*time.Minute)))
		require.NoError(t, jobs.Put(t.Context(), "done", delivery.ID("done"), deadline(10*time.Minute)))
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Hour, stop)
		var mu sync.Mutex
		calls, begun := map[job]int{}, time.Now()
		next := delivery.NewQueue[string](engine, "next")
		_, err := delivery.Run(ctx, jobs, operate(jobs, func(_ context.Context, j job) (string, error) {
			mu.Lock()
			calls[j]++
			mu.Unlock()
			if j == "fails" {
				return "", errBusy
			}
			return string(j), nil
		}), next, silently, delivery.WithFloodGuard(1, 100))
		require.NoError(t, err)
		require.Equal(t, map[job]int{"fails": 2, "done": 1}, calls)
		for _, e := range entriesOf(t, engine, jobs.DeadLetters()) {
			require.Equal(t, store.Expired, e.Cause, e.Meta.ID)
			require.Less(t, e.Arrived.Sub(begun), 5*time.Minute, e.Meta.ID)
		}
		require.Len(t, entriesOf(t, engine, jobs.DeadLetters()), 2)
		passed := entriesOf(t, engine, "next")
		require.Len(t, passed, 1)
		require.False(t, passed[0].Meta.Deadline.IsZero(), "it travels with its message")
	})
}

// Messages that wait in layers of another version of the program are visited all the
// same.
func TestQueueWithFewerLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		m := store.Message{Meta: message.Meta{ID: "a", Visit: 3}, Payload: []byte(`"a"`), Delay: time.Minute}
		require.NoError(t, engine.Put(t.Context(), "jobs-retry-3", m))
		jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Second), noLog)
		counts, err := jobs.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, counts.Retrying)
		ms, err := jobs.Receive(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, 4, ms[0].Meta().Visit)
		ms[0].Ack()

		m.Meta.ID = "b" // it comes while the worker runs
		require.NoError(t, engine.Put(t.Context(), "jobs-retry-2", m))
		begun := time.Now()
		ms, err = jobs.Receive(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, "b", ms[0].Meta().ID)
		require.Less(t, time.Since(begun), 6*time.Minute)
		ms[0].Ack()
		require.NoError(t, jobs.Close(t.Context()))
	})
}

// A queue gives layers and dead letters to another source.
func TestQueueBesideAnotherSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), noLog)
		require.NoError(t, jobs.Put(t.Context(), "merged", delivery.ID("merged")))
		in := make(chan job, 2)
		in <- "a"
		in <- "busy"
		var done []string
		ctx, stop := context.WithCancel(t.Context())
		first := channel.NewSource(in, func(j job) *message.Meta { return &message.Meta{ID: string(j)} })
		time.AfterFunc(time.Hour, stop)
		_, err := delivery.Run(ctx, jobs.Source(first), operate(jobs, func(ctx context.Context, j job) (string, error) {
			if meta, _ := message.MetaFromContext(ctx); j == "busy" && meta.Visit == 1 {
				return "", errBusy
			}
			return string(j), nil
		}), sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			for _, m := range ms {
				done = append(done, m.Value)
			}
			return nil
		}), silently)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"a", "merged", "busy"}, done)
	})
}

// A bounded queue refuses more, and its worker waits until there is room (law D5).
func TestWithMaxDepth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		in, out := delivery.NewQueue[job](engine, "in"), delivery.NewQueue[string](engine, "out", delivery.WithMaxDepth(10))
		for i := range 25 {
			require.NoError(t, in.Put(t.Context(), job(fmt.Sprint(i)), delivery.ID(fmt.Sprint(i))))
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			_, err := delivery.Run(ctx, in, operate(in, func(_ context.Context, j job) (string, error) { return string(j), nil }), out, silently)
			if err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(10 * time.Second)
		require.Len(t, entriesOf(t, engine, "out"), 10)
		err := out.Put(t.Context(), "more")
		require.ErrorIs(t, err, store.ErrFull)
		require.ErrorContains(t, err, `queue "out"`)
		got := 0
		for got < 25 {
			ms, err := out.Receive(t.Context(), 100)
			require.NoError(t, err)
			for _, m := range ms {
				m.Ack()
				got++
			}
			require.LessOrEqual(t, len(entriesOf(t, engine, "out")), 10)
		}
		stop()
		<-ended
		require.NoError(t, out.Close(t.Context()))
		counts, err := in.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, delivery.QueueCounts{}, counts)
	})
}

// Regression: a PutAll of more messages than fit into a queue returned ErrFull, for ever.
func TestPutAllThatCanNeverFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "q", delivery.WithMaxDepth(3))
		all := make([]message.Message[int], 4)
		for i := range all {
			all[i] = message.New(i, nil, nil)
		}
		err := q.PutAll(t.Context(), all)
		require.ErrorIs(t, err, message.ErrRefused)
		require.NotErrorIs(t, err, store.ErrFull)
		require.ErrorContains(t, err, `queue "q": `)
		require.ErrorContains(t, err, "4 messages at once never fit: at most 3 are allowed (WithMaxDepth)")
		require.Empty(t, entriesOf(t, engine, "q"))
		require.NoError(t, q.PutAll(t.Context(), all[:2]))
		require.ErrorIs(t, q.PutAll(t.Context(), all[2:]), store.ErrFull, "there is room for one")
		require.NoError(t, q.PutAll(t.Context(), all[2:3]))
		require.ErrorIs(t, q.PutAll(t.Context(), all[3:]), store.ErrFull)
	})
}

// hanging is an engine whose Count waits for the end of its context.
type hanging struct{ *memory.Engine }

func (hanging) Count(ctx context.Context, _ string, _ store.Filter) (store.Counts, error) {
	<-ctx.Done()
	return store.Counts{}, context.Cause(ctx)
}

// Regression: a Put waited for the count of another one beyond the end of its context.
func TestPutWhileAnotherOneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delivery.NewQueue[int](hanging{memory.Open()}, "q", delivery.WithMaxDepth(3))
		long, cancel := context.WithCancel(t.Context())
		counted := make(chan error, 1)
		go func() { counted <- q.Put(long, 1) }() // ends with long
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		require.ErrorIs(t, q.Put(short, 2), context.DeadlineExceeded)
		cancel()
		require.ErrorIs(t, <-counted, context.Canceled)
	})
}

// Results keep the history of their messages, without the visits.
func TestQueueIsASink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		in := delivery.NewQueue[string](engine, "in", noLog)
		next := delivery.NewQueue[float64](engine, "next")
		require.NoError(t, in.Put(t.Context(), "a", delivery.ID("a")))
		ms, err := in.Receive(t.Context(), 1)
		require.NoError(t, err)
		bad := message.With(ms[0], math.NaN())
		require.NoError(t, next.PutAll(t.Context(), []message.Message[float64]{bad}), "what cannot be encoded is rejected")
		require.False(t, bad.Pending())
		require.NoError(t, in.Close(t.Context()))
		require.Len(t, entriesOf(t, engine, in.DeadLetters()), 1)

		// D1: without an acknowledgement the caller would not see the rejection, and take
		// the value for safe.
		good, lost := message.New(1.0, &message.Meta{ID: "1"}, nil), message.New(math.NaN(), &message.Meta{ID: "2"}, nil)
		all := delivery.NewQueue[float64](engine, "next")
		err = all.PutAll(t.Context(), []message.Message[float64]{good, lost})
		require.ErrorIs(t, err, message.ErrRefused)
		require.ErrorContains(t, err, `queue "next": message "2": `)
		require.Empty(t, entriesOf(t, engine, "next"))
		require.ErrorIs(t, all.Put(t.Context(), math.NaN()), message.ErrRefused)

		in = delivery.NewQueue[string](engine, "in", noLog)
		require.NoError(t, in.Put(t.Context(), "b", delivery.ID("b"), delivery.Key("k")))
		ms, err = in.Receive(t.Context(), 1)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, all.PutAll(t.Context(), []message.Message[float64]{message.With(ms[0], 7.0)}))
		}
		ms[0].Ack()
		require.NoError(t, in.Close(t.Context()))
		entries := entriesOf(t, engine, "next")
		require.Len(t, entries, 1)
		require.Equal(t, "b", entries[0].Meta.ID)
		require.Equal(t, "k", entries[0].Meta.Key)
		require.Zero(t, entries[0].Meta.Visit)
		require.Equal(t, "7", string(entries[0].Payload))
		require.NoError(t, all.PutAll(t.Context(), []message.Message[float64]{message.New(8.0, nil, nil), message.New(8.0, nil, nil)}))
		require.Len(t, entriesOf(t, engine, "next"), 3, "without an id, each value is a message")
	})
}

// The chosen provider is stored before it is called, and is known at every visit, on
// every worker.
func TestQueueSetProvider_Kept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour), noLog)
		for _, id := range []string{"fails", "changes", "rejected"} {
			require.NoError(t, jobs.Put(t.Context(), job(id), delivery.ID(id)))
		}
		var mu sync.Mutex
		choices := map[job]int{} // guarded by mu
		var asked []string       // guarded by mu
		worker := func(d time.Duration) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(d, stop)
			q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour), noLog) // another process
			_, err := delivery.Run(ctx, q, operate(q, func(ctx context.Context, j job) (string, error) {
				provider, err := q.Provider(ctx, func() string {
					mu.Lock()
					defer mu.Unlock()
					choices[j]++
					return fmt.Sprint("north ", choices[j])
				})
				if err != nil {
					return "", err
				}
				stored := ""
				for _, name := range []string{"jobs", "jobs-retry-1", "jobs-retry-2"} {
					for _, e := range entriesOf(t, engine, name) {
						if e.Meta.ID == string(j) {
							stored = e.Meta.Provider
						}
					}
				}
				require.Equal(t, provider, stored, "before the call")
				meta, _ := message.MetaFromContext(ctx)
				mu.Lock()
				asked = append(asked, fmt.Sprint(j, " ", meta.Visit, " ", provider))
				mu.Unlock()
				if j == "changes" && meta.Visit == 2 {
					require.NoError(t, q.SetProvider(ctx, "south"))
				}
				if j == "rejected" {
					return "", message.ErrRefused
				}
				return "", errBusy
			}), sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently, delivery.WithFloodGuard(1, 100))
			require.NoError(t, err)
		}
		worker(30 * time.Second)
		worker(2 * time.Minute)
		worker(2 * time.Hour)
		require.Equal(t, map[job]int{"fails": 1, "changes": 1, "rejected": 1}, choices)
		require.Subset(t, asked, []string{"fails 1 north 1", "fails 2 north 1", "fails 3 north 1", "changes 2 north 1", "changes 3 south"})
		letters, err := engine.List(t.Context(), jobs.DeadLetters(), store.Filter{Provider: "south"}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, letters, 1)
		require.Equal(t, "changes", letters[0].Meta.ID)
		require.Len(t, entriesOf(t, engine, jobs.DeadLetters()), 3)

		choose := func() string { return "north" }
		_, err = jobs.Provider(t.Context(), choose)
		require.ErrorContains(t, err, "was not received from this queue")
		require.Error(t, jobs.SetProvider(t.Context(), ""))
		poor := delivery.NewQueue[job](struct{ store.Store }{engine}, "jobs", noLog)
		require.NoError(t, poor.Put(t.Context(), "x"))
		ms, err := poor.Receive(t.Context(), 1)
		require.NoError(t, err)
		_, err = poor.Provider(message.NewContext(t.Context(), ms[0]), choose)
		require.NoError(t, err)
		require.NoError(t, poor.Close(t.Context()))
	})
}

// Two workers of one process share a queue.
func TestRun_TwoRunsOfAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		in, out := delivery.NewQueue[job](engine, "in"), delivery.NewQueue[string](engine, "out")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan delivery.Summary, 2)
		for range 2 {
			go func() { // ends with ctx
				op := operate(in, func(context.Context, job) (string, error) {
					time.Sleep(time.Second)
					return "done", nil
				})
				summary, err := delivery.Run(ctx, in, op, out, silently, delivery.WithBatch(1))
				if err != nil {
					t.Error(err)
				}
				ended <- summary
			}()
		}
		for i := range 40 {
			require.NoError(t, in.Put(t.Context(), "x", delivery.ID(fmt.Sprint(i))))
			time.Sleep(time.Duration(51+i) * time.Millisecond) // messages that arrive at once could all go to one worker
		}
		time.AfterFunc(10*time.Second, stop)
		first, second := <-ended, <-ended
		require.NotZero(t, first.Done)
		require.NotZero(t, second.Done)
		require.Equal(t, 40, first.Done+second.Done)
		require.Len(t, entriesOf(t, engine, "out"), 40)
		require.NoError(t, in.Put(t.Context(), "x"), "the queue can be used after its workers")
	})
}

// pointerIdempotent has a method that its values do not have.
type pointerIdempotent struct{ N int }

func (*pointerIdempotent) Idempotent() bool { return true }

func TestNewQueueRefuses(t *testing.T) {
	engine := memory.Open()
	for name, f := range map[string]func(){
		"no engine":               func() { delivery.NewQueue[int](nil, "q") },
		"no name":                 func() { delivery.NewQueue[int](engine, "") },
		"NUL":                     func() { delivery.NewQueue[int](engine, "a\x00") },
		"a layer's name":          func() { delivery.NewQueue[int](engine, "q-retry-1") },
		"a dead name":             func() { delivery.NewQueue[int](engine, "q-dead") },
		"a blocked name":          func() { delivery.NewQueue[int](engine, "q-blocked") },
		"a space at the end":      func() { delivery.NewQueue[int](engine, "q ") },
		"a line end":              func() { delivery.NewQueue[int](engine, "a\nb") },
		"Idempotent of a pointer": func() { delivery.NewQueue[pointerIdempotent](engine, "q") },
	} {
		require.Panics(t, f, name)
	}
	require.NotPanics(t, func() { delivery.NewQueue[int](engine, "q-retry-x") })
	require.NotPanics(t, func() { delivery.NewQueue[*pointerIdempotent](engine, "pointers") })
	require.NoError(t, delivery.NewQueue[int](engine, "q").Put(t.Context(), 1, delivery.After(-1)), "a time in the past is due now")
	_, err := delivery.NewQueue[int](struct{ store.Store }{engine}, "q").Counts(t.Context())
	require.ErrorContains(t, err, "store.Inspector")
}

// Law W6: the fields that JSON leaves out would be lost between Put and the worker.
func TestNewQueue_TypeThatTheCodecChanges(t *testing.T) {
	engine := memory.Open()
	type order struct{ id string }
	type outer struct {
		Orders []order
		When   time.Time
	}
	type kept struct {
		N      int
		Fields map[string]any
		cache  string `json:"-"`
	}
	_, _ = order{}.id, kept{}.cache
	refusal := func(f func()) (text string) {
		defer func() { text = fmt.Sprint(recover()) }()
		f()
		return ""
	}
	text := refusal(func() { delivery.NewQueue[order](engine, "q") })
	require.Contains(t, text, `delivery: NewQueue: queue "q": `)
	require.Contains(t, text, "codec of delivery_test.order: .id: JSON leaves out the unexported field")
	require.Contains(t, text, "WithCodec")
	require.Contains(t, refusal(func() { delivery.NewQueue[outer](engine, "q") }), ".Orders[].id: ")
	require.Contains(t, refusal(func() { delivery.NewQueue[struct{ V any }](engine, "q") }), ".V: JSON does not keep which type")
	require.Contains(t, refusal(func() { delivery.NewQueue[*url.URL](engine, "q") }), ".User.username: JSON leaves out", "a password")
	require.Contains(t, refusal(func() { delivery.NewQueue[order](engine, "q", delivery.WithCodec(codec.JSON[order]())) }), ".id: ")
	require.Contains(t, refusal(func() { delivery.NewQueue[order](engine, "q", delivery.WithCodec(codec.Gob[order]())) }), ".id: gob leaves out")

	own := codec.Func(func(dst []byte, v order) ([]byte, error) { return append(dst, v.id...), nil },
		func(src []byte) (order, error) { return order{string(src)}, nil })
	require.NotPanics(t, func() { delivery.NewQueue[order](engine, "q", delivery.WithCodec(own)) })
	require.NotPanics(t, func() { delivery.NewQueue[kept](engine, "q") })
}

// A loop that has not noticed that its queue is closed must not take messages, which
// would not be settled.
func TestQueueIsNotReceivedAfterClose(t *testing.T) {
	engine := memory.Open()
	q := delivery.NewQueue[job](engine, "q", noLog)
	require.NoError(t, q.Put(t.Context(), "a", delivery.ID("1")))
	require.NoError(t, q.Close(t.Context()))
	_, err := q.Receive(t.Context(), 1)
	require.EqualError(t, err, `delivery: queue "q": Receive after Close; Source makes another source`)
	c, err := q.Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, c.Waiting)
	require.NoError(t, q.Close(t.Context()))
}

// A time in the past means due now, as a delay that is not positive does.
func TestAt_TimeHasPassed(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	q := delivery.NewQueue[int](memory.Open(), "orders", delivery.WithClock(mock))
	for name, c := range map[string]struct {
		options []delivery.PutOption
		delay   time.Duration
	}{
		"past":                  {[]delivery.PutOption{delivery.At(mock.Now().Add(-time.Hour))}, 0},
		"now":                   {[]delivery.PutOption{delivery.At(mock.Now())}, 0},
		"in an hour":            {[]delivery.PutOption{delivery.At(mock.Now().Add(time.Hour))}, time.Hour},
		"a zero time":           {[]delivery.PutOption{delivery.At(time.Time{})}, 0},
		"far away":              {[]delivery.PutOption{delivery.At(mock.Now().AddDate(9000, 0, 0))}, math.MaxInt64},
		"after a negative time": {[]delivery.PutOption{delivery.After(-time.Second)}, 0},
		"After wins":            {[]delivery.PutOption{delivery.At(mock.Now().Add(time.Hour)), delivery.After(time.Minute)}, time.Minute},
		"At wins":               {[]delivery.PutOption{delivery.After(time.Minute), delivery.At(mock.Now().Add(time.Hour))}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := q.Encode(1, c.options...)
			require.NoError(t, err)
			require.Equal(t, c.delay, m.Delay)
			require.True(t, m.Meta.Due.IsZero())
			require.NoError(t, q.Put(t.Context(), 1, c.options...))
		})
	}
}

// Headers travel with the message, and weir's own names are refused.
func TestHeaders(t *testing.T) {
	e := memory.Open()
	q := delivery.NewQueue[int](e, "orders")
	mine := map[string]string{"tenant": "north"}
	require.NoError(t, q.Put(t.Context(), 1, delivery.Headers(mine), delivery.Headers(map[string]string{"traceparent": "00-1"})))
	require.Len(t, mine, 1, "the map stays the caller's")
	entries, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"tenant": "north", "traceparent": "00-1"}, entries[0].Meta.Headers)
	require.ErrorIs(t, q.Put(t.Context(), 1, delivery.Headers(map[string]string{"weir-id": "a"})), message.ErrRefused)
	require.ErrorIs(t, q.Put(t.Context(), 1, delivery.Headers(map[string]string{"weir-points-to": "a"})), message.ErrRefused)
}

// An error names the queue, the message and the fault once.
func TestQueuePut_IDIsTooLong(t *testing.T) {
	err := delivery.NewQueue[int](memory.Open(), "q", noLog).Put(t.Context(), 1, delivery.ID(strings.Repeat("\x00", 2000)))
	require.ErrorIs(t, err, message.ErrRefused)
	require.Regexp(t, `^delivery: queue "q": memory: message "(\\x00){100}…": it can never be stored: ID has 2000 bytes, at most 1024 are allowed$`, err.Error())
	require.Less(t, len(err.Error()), 600)
}

// The log line of a message that is given up without a visit has no times that are not
// known.
func TestQueueSource_GivenUpWithoutAVisit(t *testing.T) {
	engine := memory.Open()
	require.NoError(t, engine.Put(t.Context(), "q-retry-1", store.Message{Meta: message.Meta{ID: "1", UnsafeToRepeat: true}, Payload: []byte(`1`)}))
	var log bytes.Buffer
	q := delivery.NewQueue[int](engine, "q", delivery.RetryAfter(time.Hour), delivery.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	s := q.Source(nil)
	_, err := s.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.Close(t.Context()))
	require.Contains(t, log.String(), "message given up without a visit")
	require.NotContains(t, log.String(), "0001-01-01")
	require.NotContains(t, log.String(), "deadline")
}
