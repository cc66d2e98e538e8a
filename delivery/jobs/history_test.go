package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/message"
)

// flowing is a worker of the queue orders whose counts a test sets.
type flowing struct {
	received, redelivered, done, failed atomic.Int64
}

// aboutOf returns the report of the worker of a queue. Its members are those of a stored
// delivery.Summary.
func (f *flowing) aboutOf(queue string) jobs.Worker {
	counts := fmt.Sprintf(`{"Received":%d,"Redelivered":%d,"Acknowledged":%d,"HandedOver":%d}`, f.received.Load(), f.redelivered.Load(), f.done.Load(), f.failed.Load())
	return jobs.Worker{Reads: queue, Queues: []string{queue}, Counts: json.RawMessage(counts)}
}

// work runs the worker of the queue orders, and returns a function that ends it.
func (f *flowing) work(t *testing.T, e store.Engine) (end func()) {
	t.Helper()
	return f.workOn(t, e, "orders")
}

func (f *flowing) workOn(t *testing.T, e store.Engine, queue string) (end func()) {
	t.Helper()
	j := newJobs(t, e)
	return runEach(t, 1, 0, func(ctx context.Context, _ int) {
		j.Work(ctx, func() jobs.Worker { return f.aboutOf(queue) }, nil)
	})
}

func newJobs(t *testing.T, e store.Engine) *jobs.Jobs {
	t.Helper()
	j, err := jobs.New(e, jobs.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return j
}

// historyOf returns the history of the queue orders, a point as "minute: waiting dead in
// out failed", with the minutes since begun.
func historyOf(t *testing.T, e store.Engine, begun time.Time) (list []string) {
	t.Helper()
	points, err := newJobs(t, e).History(t.Context(), "orders")
	require.NoError(t, err)
	for _, p := range points {
		list = append(list, fmt.Sprintf("%v: %d %d %d %d %d", p.At.Sub(begun), p.Waiting, p.Dead, p.In, p.Out, p.Failed))
	}
	return list
}

// putNew puts n messages in a queue.
func putNew(t *testing.T, e store.Engine, queue string, n int) {
	t.Helper()
	for range n {
		require.NoError(t, e.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: fmt.Sprint(queue, time.Now(), n)}}))
		time.Sleep(time.Nanosecond) // another id
	}
}

// A minute is the sum of the workers of a queue. One of them counts its messages, and
// another one after its end.
func TestJobsHistory_TwoWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := memory.Open(), time.Now()
		var a, b flowing
		endA := a.work(t, e)
		time.Sleep(5 * time.Second) // between reports
		endB := b.work(t, e)
		putNew(t, e, "orders", 3)
		putNew(t, e, "orders-retry-1", 2)
		putNew(t, e, "orders-dead", 1)
		putNew(t, e, "others", 9)
		flow := func() {
			a.received.Add(5)
			a.done.Add(3)
			b.received.Add(4)
			b.redelivered.Add(1)
			b.failed.Add(2)
			time.Sleep(time.Minute)
		}
		flow()
		flow()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"0s: -1 -1 8 3 2", "1m0s: 5 1 8 3 2"}, historyOf(t, e, begun), "the other minutes are idle, or have not ended")

		endA() // it counts
		putNew(t, e, "orders-dead", 1)
		flow()
		flow()
		flow()
		require.Equal(t, "5m0s: 5 2 3 0 2", historyOf(t, e, begun)[5], "the other worker counts now")
		endB()
	})
}

// A worker that counts messages does so in the next hour, too, even if another worker is
// the first to write in that hour.
func TestJobsHistory_CounterOfTheNextHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		var a, b flowing
		time.Sleep(3 * time.Minute) // it writes idle minutes at 59 and 64
		defer a.work(t, e)()
		time.Sleep(2*time.Minute + 5*time.Second) // it is the counter then
		defer b.work(t, e)()
		for range 70 {
			b.received.Add(1) // only this worker writes each minute
			time.Sleep(time.Minute)
		}
		records, err := e.Records(t.Context(), "history", "", 10)
		require.NoError(t, err)
		require.Len(t, records, 2)
		var counters [2]struct{ Counter string }
		for i, r := range records {
			require.NoError(t, json.Unmarshal([]byte(r.Value), &counters[i]))
		}
		require.NotEmpty(t, counters[0].Counter)
		require.Equal(t, counters[0], counters[1])
	})
}

// While the engine refuses reports, it is not known in which minute messages were done:
// there is a gap. A worker that starts afterwards continues the hour.
func TestJobsHistory_GapAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		e := &refusesLater{Engine: memory.Open(), from: begun.Add(2 * time.Minute), until: begun.Add(10 * time.Minute)}
		var a flowing
		end := a.work(t, e)
		time.Sleep(5 * time.Second) // between reports
		for range 12 {
			a.received.Add(1)
			time.Sleep(time.Minute)
		}
		end()
		var b flowing
		end = b.work(t, e)
		b.received.Add(7)
		time.Sleep(50 * time.Second)
		end()
		var minutes []string
		sum := 0
		points, err := newJobs(t, e).History(t.Context(), "orders")
		require.NoError(t, err)
		for _, p := range points {
			minutes = append(minutes, p.At.Sub(begun).String())
			sum += p.In
		}
		require.Equal(t, []string{"0s", "1m0s", "10m0s", "11m0s", "12m0s"}, minutes)
		require.Equal(t, 2+1+1+7, sum, "messages of the gap are left out, and the last minutes of a worker that ends are not")
	})
}

// refusesLater is an engine that cannot be written for some time.
type refusesLater struct {
	*memory.Engine
	from, until time.Time
}

func (e *refusesLater) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	if now := time.Now(); !now.Before(e.from) && now.Before(e.until) {
		return context.DeadlineExceeded
	}
	return e.Engine.Update(ctx, f)
}

// A commit whose answer is lost counts once, also if the worker ends before it tries again.
func TestJobsHistory_LostAnswer(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprint("the worker ends: ", ends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, begun := &losesAnswer{Engine: memory.Open()}, time.Now()
				var a flowing
				end := a.work(t, e)
				time.Sleep(5 * time.Second) // between reports
				a.received.Add(3)
				e.loses.Store(true)
				time.Sleep(61 * time.Second)
				require.False(t, e.loses.Load(), "an answer was lost")
				a.received.Add(4)
				if ends {
					end()
				} else {
					time.Sleep(2 * time.Minute)
					defer end()
				}
				require.Equal(t, []string{"0s: -1 -1 3 0 0", "1m0s: -1 -1 4 0 0"}, flows(historyOf(t, e, begun)))
			})
		})
	}
}

// A commit whose answer is lost counts once, even if the attempts after it fail as well.
func TestJobsHistory_LostAnswerAndFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := &losesAnswer{Engine: memory.Open()}, time.Now()
		var a flowing
		defer a.work(t, e)()
		time.Sleep(58*time.Minute + 5*time.Second) // between reports
		a.received.Add(3)
		time.Sleep(55 * time.Second)
		a.received.Add(4) // the minute 59
		e.loses.Store(true)
		time.Sleep(2 * time.Minute) // written after the end of the hour
		require.False(t, e.loses.Load(), "an answer was lost")
		for i, failure := range []error{errors.New("refused"), errors.New("broken"), nil} {
			e.fails.Store(&failure)
			a.received.Add(int64(i))
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Minute)
		sum := 0
		points, err := newJobs(t, e).History(t.Context(), "orders")
		require.NoError(t, err)
		for _, p := range points {
			sum += p.In
		}
		require.Equal(t, 3+4+1+2, sum, flows(historyOf(t, e, begun)))
	})
}

// flows returns points as if they were not counted.
func flows(points []string) (list []string) {
	for _, text := range points {
		at, numbers, _ := strings.Cut(text, ": ")
		list = append(list, at+": -1 -1 "+strings.Join(strings.Fields(numbers)[2:], " "))
	}
	return list
}

// losesAnswer is an engine that loses the answer of a commit that changes the history.
type losesAnswer struct {
	*memory.Engine
	loses atomic.Bool
	fails atomic.Pointer[error] // in each transaction that changes the history, before the commit
}

func (e *losesAnswer) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	before, err := e.Records(ctx, "history", "", 10)
	if err != nil {
		return err
	}
	err = e.Engine.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		err := f(ctx, tx)
		if failure := e.fails.Load(); failure != nil && err == nil {
			return e.failure(ctx, tx, before, *failure)
		}
		return err
	})
	if err != nil {
		return err
	}
	after, err := e.Records(ctx, "history", "", 10)
	if err == nil && !slices.Equal(before, after) && e.loses.CompareAndSwap(true, false) {
		err = errors.New("the connection was reset")
	}
	return err
}

// failure returns an error if a transaction has changed the history.
func (*losesAnswer) failure(ctx context.Context, tx store.Tx, before []store.Record, failure error) error {
	now, err := tx.Records(ctx, "history", "", 10)
	if err != nil || slices.Equal(before, now) {
		return err
	}
	return failure
}

// Names of queues may have spaces and control characters, and be the beginning of others.
func TestJobsHistory_Names(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		names := []string{" ", "a", "a ", "a b", "a\nb", "\t\x01", "é\u202e", "a\U0010ffff", "2006-01-02T15 a", strings.Repeat("n", 300)}
		for i, name := range names {
			var f flowing
			end := f.workOn(t, e, name)
			time.Sleep(time.Second)
			f.received.Add(int64(i + 1))
			end()
		}
		for i, name := range names {
			points, err := newJobs(t, e).History(t.Context(), name)
			require.NoError(t, err)
			require.Len(t, points, 1, "%q", name)
			require.Equal(t, i+1, points[0].In, "%q", name)
		}
	})
}

// pointsIn writes the record of an hour.
func pointsIn(t *testing.T, e store.Keeper, queue string, hour time.Time, points string) {
	t.Helper()
	r := store.Record{Kind: "history", Name: hour.UTC().Format("2006-01-02T15") + " " + queue, Value: points}
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, r) }))
}

// inMinutes returns points as text: the minute before now, Waiting and In of each.
func inMinutes(points []jobs.HistoryPoint, now time.Time) (text []string) {
	for _, p := range points {
		text = append(text, fmt.Sprintf("-%d: %d, %d in", int(now.Sub(p.At)/time.Minute), p.Waiting, p.In))
	}
	return text
}

// The histories of all queues are read together, from a time until now, without damaged
// records.
func TestJobsHistories(t *testing.T) {
	e := memory.Open()
	mock := clock.NewMock()
	now := time.Date(2026, 3, 1, 15, 20, 5, 0, time.UTC)
	mock.Set(now)
	j, err := jobs.New(e, jobs.Config{Clock: mock})
	require.NoError(t, err)
	for i := range 1100 { // more than are read at once
		pointsIn(t, e, fmt.Sprint("shop ", i), now, `{"points":[[19,1,0,5,0,0]]}`)
	}
	pointsIn(t, e, "two words", now.Add(-2*time.Hour), `{"points":[[50,1,0,5,0,0]]}`)
	pointsIn(t, e, "two words", now.Add(-time.Hour), `{"points":[[20,2,0,5,0,0],[21,3,0,6,0,0]]}`)
	pointsIn(t, e, "two words", now, `{"points":[[20,4,0,7,0,0],[21,5,0,8,0,0]]}`)
	pointsIn(t, e, "broken", now, `{"points":[[20`)
	all, err := j.Histories(t.Context(), nil, now.Add(-time.Hour))
	require.NoError(t, err)
	require.Len(t, all, 1101)
	require.Equal(t, []string{"-59: 3, 6 in", "-0: 4, 7 in"}, inMinutes(all["two words"], now))
	require.Equal(t, []string{"-1: 1, 5 in"}, inMinutes(all["shop 1099"], now))
}

// The last minutes of an idle queue are not written yet: they are added while a worker of
// the queue is live. Those of a busy queue, or of stopped workers, are not.
func TestJobsHistories_IdleQueue(t *testing.T) {
	e := memory.Open()
	mock := clock.NewMock()
	now := time.Date(2026, 3, 1, 15, 20, 5, 0, time.UTC)
	mock.Set(now)
	j, err := jobs.New(e, jobs.Config{Clock: mock})
	require.NoError(t, err)
	var workers []jobs.Worker
	for queue, minute := range map[string]int{"idle": 16, "busy": 18, "gone": 12, "silent": 16, "left": 16} {
		pointsIn(t, e, queue, now, fmt.Sprintf(`{"points":[[%d,7,3,5,0,0]]}`, minute))
		seen := now
		if queue == "silent" {
			seen = now.Add(-2 * jobs.SilentAfter)
		}
		if queue != "left" {
			workers = append(workers, jobs.Worker{ID: queue, Reads: queue, Seen: seen}, jobs.Worker{ID: "second " + queue, Outbox: queue, Seen: seen})
		}
	}
	workers = append(workers, jobs.Worker{ID: "without a queue", Seen: now}, jobs.Worker{ID: "new", Reads: "new", Seen: now})
	all, err := j.Histories(t.Context(), workers, now.Add(-time.Hour))
	require.NoError(t, err)
	for queue, want := range map[string][]string{
		"idle":   {"-4: 7, 5 in", "-3: 7, 0 in", "-2: 7, 0 in", "-1: 7, 0 in", "-0: 7, 0 in"},
		"busy":   {"-2: 7, 5 in"},
		"gone":   {"-8: 7, 5 in"},
		"silent": {"-4: 7, 5 in"},
		"left":   {"-4: 7, 5 in"},
		"new":    nil,
	} {
		require.Equal(t, want, inMinutes(all[queue], now), queue)
	}
	require.Equal(t, 3, all["idle"][4].Dead)
}

// Minutes in which no worker reported are gaps, and a clock that is ahead of the engine's
// does not make a busy queue idle.
func TestJobsHistories_NoFalseMinutes(t *testing.T) {
	now := time.Date(2026, 3, 1, 15, 20, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		minute int           // of the last point
		ahead  time.Duration // by which the clock is ahead of the engine's
		age    time.Duration // of the worker's report, by the engine's clock
		since  time.Duration // since which the worker runs
		want   int           // points
	}{
		"idle":                                {minute: 16, since: time.Hour, want: 5},
		"until the last report":               {minute: 15, age: 50 * time.Second, since: time.Hour, want: 5},
		"started after an outage":             {minute: 14, since: 20 * time.Second, want: 1},
		"the worker has followed another one": {minute: 16, since: 200 * time.Second, want: 5},
		"a busy queue, and a clock ahead":     {minute: 18, ahead: 55 * time.Second, since: time.Hour, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := memory.Open()
			mock := clock.NewMock()
			mock.Set(now.Add(tt.ahead))
			j, err := jobs.New(e, jobs.Config{Clock: mock})
			require.NoError(t, err)
			pointsIn(t, e, "orders", now, fmt.Sprintf(`{"points":[[%d,7,3,5,0,0]]}`, tt.minute))
			w := jobs.Worker{ID: "a", Reads: "orders", Seen: now.Add(-tt.age), Since: now.Add(-tt.since)}
			all, err := j.Histories(t.Context(), []jobs.Worker{w}, now.Add(-time.Hour))
			require.NoError(t, err)
			require.Len(t, all["orders"], tt.want)
		})
	}
}

// The engine keeps 24 hours (law W3), of queues without workers as well.
func TestJobsHistory_Age(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		old := time.Now().UTC().Format("2006-01-02T15") + " earlier"
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "history", Name: old, Value: `{"points":[]}`})
		}))
		var a flowing
		defer a.work(t, e)()
		time.Sleep(5 * time.Second) // between reports
		for range 30 * 60 {
			a.received.Add(1)
			time.Sleep(time.Minute)
		}
		points, err := newJobs(t, e).History(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, 24*60-1, len(points), "the present minute has not ended")
		for i, p := range points {
			require.Equal(t, 1, p.In, i)
		}
		records, err := e.Records(t.Context(), "history", "", 100)
		require.NoError(t, err)
		require.LessOrEqual(t, len(records), 26)
		require.NotEqual(t, old, records[0].Name)
		for _, r := range records {
			require.Less(t, len(r.Value), 2000, "a record has 60 points at most")
		}
	})
}

// Idle minutes are written together. When messages arrive that no worker takes, each
// minute is written.
func TestJobsHistory_Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := memory.Open(), time.Now()
		var a, b flowing
		defer a.work(t, e)()
		defer b.work(t, e)()
		time.Sleep(31*time.Minute + 5*time.Second) // between reports
		versions := func() (n int64) {
			records, err := e.Records(t.Context(), "history", "", 10)
			require.NoError(t, err)
			for _, r := range records {
				n += r.Version
			}
			return n
		}
		idle := versions()
		require.LessOrEqual(t, idle, int64(16), "two workers wrote %d times in 31 minutes", idle)
		list := historyOf(t, e, begun)
		require.GreaterOrEqual(t, len(list), 26)
		for i, text := range list {
			require.True(t, strings.HasPrefix(text, (time.Duration(i)*time.Minute).String()+": "), "no gap: %s", text)
		}
		for range 3 {
			putNew(t, e, "orders", 10)
			time.Sleep(time.Minute)
		}
		require.Contains(t, historyOf(t, e, begun), "33m0s: 30 0 0 0 0")
	})
}

// The idle minutes of a worker that ends are no gap. A worker that ends within its first
// minute, without messages, writes nothing.
func TestJobsHistory_IdleWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := memory.Open(), time.Now()
		var a flowing
		end := a.work(t, e)
		time.Sleep(50 * time.Second)
		end()
		require.Empty(t, historyOf(t, e, begun))
		for range 2 {
			end = a.work(t, e)
			time.Sleep(5*time.Minute + 20*time.Second)
			end()
		}
		var minutes []string
		for _, text := range historyOf(t, e, begun) {
			at, _, _ := strings.Cut(text, ":")
			minutes = append(minutes, at)
		}
		require.Equal(t, []string{"0s", "1m0s", "2m0s", "3m0s", "4m0s", "5m0s", "6m0s", "7m0s", "8m0s", "9m0s", "10m0s", "11m0s"}, minutes)
	})
}

// The worker that counts was killed: its report says so after two minutes.
func TestJobsHistory_CounterWasKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := memory.Open(), time.Now()
		name := begun.UTC().Format("2006-01-02T15") + " orders"
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			err := tx.Write(ctx, store.Record{Kind: "worker", Name: "killed", Value: fmt.Sprintf(`{"id":"killed","seen":%q}`, begun.Format(time.RFC3339))})
			if err != nil {
				return err
			}
			return tx.Write(ctx, store.Record{Kind: "history", Name: name, Value: `{"counter":"killed","points":[]}`})
		}))
		putNew(t, e, "orders", 2)
		var a flowing
		defer a.work(t, e)()
		time.Sleep(5 * time.Second) // between reports
		for range 6 {
			a.received.Add(1)
			time.Sleep(time.Minute)
		}
		list := historyOf(t, e, begun)
		require.Equal(t, []string{"0s: -1 -1 1 0 0", "1m0s: -1 -1 1 0 0"}, list[:2])
		require.Equal(t, "4m0s: 2 0 1 0 0", list[4])
	})
}

// A queue whose count takes long is counted for a twentieth of the time.
func TestJobsHistory_SlowCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := &slowCounts{Engine: memory.Open()}, time.Now()
		putNew(t, e, "orders", 1)
		var a flowing
		defer a.work(t, e)()
		time.Sleep(5 * time.Second) // between reports
		for range 40 {
			a.received.Add(1)
			time.Sleep(time.Minute)
		}
		require.InDelta(t, 40*60/200, e.counts.Load(), 2, "a count takes 10 s")
		require.GreaterOrEqual(t, len(historyOf(t, e, begun)), 39, "each minute is written")
	})
}

// slowCounts is an engine whose counts take 10 s.
type slowCounts struct {
	*memory.Engine
	counts atomic.Int64
}

func (e *slowCounts) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	e.counts.Add(1)
	time.Sleep(10 * time.Second)
	return e.Engine.Count(ctx, queue, f)
}

// An outbox has a history, too. Its dead letters have their own name.
func TestJobsHistory_Outbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := memory.Open(), time.Now()
		putNew(t, e, "orders", 3)
		putNew(t, e, "orders dead", 2)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			newJobs(t, e).Work(ctx, func() jobs.Worker {
				n := int(time.Since(begun) / time.Minute)
				return jobs.Worker{Outbox: "orders", Counts: fmt.Appendf(nil, `{"Received":%d,"Acknowledged":%d,"Nacked":%d}`, 3*n, 2*n, n)}
			}, nil)
		}()
		time.Sleep(4 * time.Minute)
		require.Equal(t, "2m0s: 3 2 3 2 1", historyOf(t, e, begun)[2])
		cancel()
		<-ended
	})
}

// While the engine refuses the history for long, a worker keeps its last ten minutes.
func TestJobsHistory_RefusedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := &losesAnswer{Engine: memory.Open()}, time.Now()
		var a flowing
		defer a.work(t, e)()
		time.Sleep(5 * time.Second) // between reports
		failure := errors.New("refused")
		for minute := range 60 {
			switch minute {
			case 5:
				e.fails.Store(&failure)
			case 55:
				e.fails.Store(new(error))
			}
			a.received.Add(1)
			time.Sleep(time.Minute)
		}
		var minutes []int
		points, err := newJobs(t, e).History(t.Context(), "orders")
		require.NoError(t, err)
		for _, p := range points {
			minutes = append(minutes, int(p.At.Sub(begun)/time.Minute))
			require.Equal(t, 1, p.In)
		}
		require.Equal(t, []int{0, 1, 2, 3, 4, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59}, minutes)
	})
}

// The clock of the process that asks may be behind the engine's, whose hour is the next.
func TestJobsHistory_ClockBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		var a flowing
		end := a.work(t, e)
		time.Sleep(5 * time.Second) // between reports
		a.received.Add(1)
		end()
		mock := clock.NewMock()
		mock.Set(time.Now().Add(-10 * time.Minute))
		j, err := jobs.New(e, jobs.Config{Clock: mock})
		require.NoError(t, err)
		points, err := j.History(t.Context(), "orders")
		require.NoError(t, err)
		require.Len(t, points, 1)
	})
}

// A record that a later version has written is left alone if it cannot be read. Members
// and numbers that this version does not know stay (law W4).
func TestJobsHistory_LaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, begun := memory.Open(), time.Now()
		hour := begun.UTC().Format("2006-01-02T15")
		write := func(version int64, value string) {
			require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
				return tx.Write(ctx, store.Record{Kind: "history", Name: hour + " orders", Version: version, Value: value})
			}))
		}
		value := func() string {
			records, err := e.Records(t.Context(), "history", "", 10)
			require.NoError(t, err)
			require.Len(t, records, 1)
			return records[0].Value
		}
		write(0, `{"points":"later"}`)
		var a flowing
		defer a.work(t, e)()
		time.Sleep(5 * time.Second) // between reports
		a.received.Add(1)
		time.Sleep(2 * time.Minute)
		require.Equal(t, `{"points":"later"}`, value())
		require.Empty(t, historyOf(t, e, begun))

		write(1, `{"counter":"","points":[[2,7,0,1,1,0,99]],"shape":{"a":1}}`)
		a.received.Add(4)
		time.Sleep(2 * time.Minute)
		require.Contains(t, value(), `[2,7,0,5,1,0,99]`)
		require.Contains(t, value(), `"shape":{"a":1}`)
	})
}

// The record of the hour of a queue (law W4).
func TestFormatsOfHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(golden.At))
		written := memory.Open()
		putNew(t, written, "orders", 2)
		var a flowing
		end := a.work(t, written)
		time.Sleep(5 * time.Second) // between reports
		for range 3 {
			a.received.Add(5)
			a.done.Add(3)
			a.failed.Add(1)
			time.Sleep(time.Minute)
		}
		records, err := written.Records(t.Context(), "history", "", 10)
		require.NoError(t, err)
		end()
		require.Len(t, records, 1)
		var counter struct{ Counter string }
		require.NoError(t, json.Unmarshal([]byte(records[0].Value), &counter))
		text := records[0].Name + "\t" + strings.Replace(records[0].Value, counter.Counter, "w1", 1) + "\n"
		name, value, _ := strings.Cut(strings.TrimSpace(string(golden.Written(t, "history", []byte(text)))), "\t")

		e := memory.Open()
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "history", Name: name, Value: value})
		}))
		points, err := newJobs(t, e).History(t.Context(), "orders")
		require.NoError(t, err)
		at := golden.At.Truncate(time.Minute)
		require.Equal(t, []jobs.HistoryPoint{
			{At: at, Waiting: -1, Dead: -1, In: 5, Out: 3, Failed: 1},
			{At: at.Add(time.Minute), Waiting: 2, Dead: 0, In: 5, Out: 3, Failed: 1},
			{At: at.Add(2 * time.Minute), Waiting: 2, Dead: 0, In: 5, Out: 3, Failed: 1},
		}, points)
	})
}
