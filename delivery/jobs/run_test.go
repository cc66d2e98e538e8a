package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

func merge(rate float64) jobs.Spec {
	return jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", Rate: rate, By: "ann", Why: "test"}
}

func jobsOf(t *testing.T, e store.Engine) *jobs.Jobs {
	t.Helper()
	j, err := jobs.New(e, jobs.Config{Local: true, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return j
}

// Regression: a job with a low rate that was cancelled or paused delayed the next job of
// its queue until its wait was over, up to a day.
func TestJobsRun_JobBehindAStoppedJob(t *testing.T) {
	for _, stop := range []func(j *jobs.Jobs, ctx context.Context, id int, by, why string) (jobs.Job, error){(*jobs.Jobs).Cancel, (*jobs.Jobs).Pause} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.Open()
			for i := range 10 {
				require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
			}
			j := jobsOf(t, s)
			slow, err := j.Start(t.Context(), merge(1.0/3600))
			require.NoError(t, err)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			go j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil) // ends with ctx
			time.Sleep(time.Minute)
			slow, err = stop(j, t.Context(), slow.ID, "ann", "too slow")
			require.NoError(t, err)
			require.Equal(t, 1, slow.Done)
			fast, err := j.Start(t.Context(), merge(0))
			require.NoError(t, err)
			time.Sleep(time.Minute)
			fast, err = j.Get(t.Context(), fast.ID)
			require.NoError(t, err)
			require.Equal(t, "done", fast.State())
			require.Equal(t, 9, fast.Done)
		})
	}
}

// broken is an engine whose messages cannot be listed.
type broken struct{ store.Keeper }

func (broken) List(context.Context, string, store.Filter, store.Page) ([]store.Entry, error) {
	return nil, errors.New("connect postgres://ann:s3cret@db/shop: EOF")
}

// The error of a job has no password: more people read jobs than URLs of databases.
func TestJobsRun_ErrorHasNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		require.NoError(t, s.Put(t.Context(), "dead", letter(1)))
		j := jobsOf(t, broken{s})
		job, err := j.Start(t.Context(), merge(0))
		require.NoError(t, err)
		ctx, end := context.WithTimeout(t.Context(), time.Second/2)
		defer end()
		_, err = j.Run(ctx, job.ID, nil)
		require.Error(t, err)
		job, err = j.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "connect postgres://ann:xxxxx@db/shop: EOF", job.Error)
	})
}

// A low rate is kept, although the job checks meanwhile whether it was stopped.
func TestJobsRun_LowRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		for i := range 4 {
			require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
		}
		j := jobsOf(t, s)
		job, err := j.Start(t.Context(), merge(1.0/3600))
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, 4, job.Done)
		require.InDelta(t, 4*time.Hour, job.Ended.Sub(job.Begun), float64(time.Minute))
	})
}

// Law J2: a line of the log that was changed is noticed. Regression: a loop over the log
// that ended early, when its context had ended or the next line was changed, panicked.
func TestLog_ReadInPart(t *testing.T) {
	s := memory.Open()
	j := jobsOf(t, s)
	for range 2 {
		_, err := j.Start(t.Context(), merge(0))
		require.NoError(t, err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	for _, err := range j.Log(ctx) {
		require.NoError(t, err)
		end()
		break
	}
	lines, err := s.Records(t.Context(), "log", "000000000001", 1)
	require.NoError(t, err)
	lines[0].Value = ""
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, lines[0]) }))
	for l, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, 1, l.N)
		break
	}
}

// stopping calls f when a step has found its messages, and before it changes them.
type stopping struct {
	store.Inspector
	f func()
}

func (s *stopping) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	ms, err := s.Inspector.Claim(ctx, queue, f, p, lease)
	s.f()
	return ms, err
}

// Regression: on an engine that keeps no jobs, a step that was under way moved its
// messages after the job had been stopped, and did not count them: a job did more than
// its Max.
func TestJobsPauseAndResume_StepUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		for i := range 10 {
			require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
		}
		engine := &stopping{Inspector: struct{ store.Inspector }{s}}
		j := jobsOf(t, engine)
		spec := merge(0)
		spec.Max = 4
		job, err := j.Start(t.Context(), spec)
		require.NoError(t, err)
		engine.f = func() {
			_, err := j.Cancel(t.Context(), job.ID, "ann", "wrong queue")
			require.NoError(t, err)
		}
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, "cancelled", job.State())
		n, err := s.Count(t.Context(), "orders", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, n.Messages)

		job, err = j.Start(t.Context(), spec)
		require.NoError(t, err)
		engine.f = func() {
			_, err := j.Pause(t.Context(), job.ID, "ann", "wait")
			require.NoError(t, err)
		}
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, "paused", job.State())
		n, err = s.Count(t.Context(), "orders", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, n.Messages)
		engine.f = func() {}
		_, err = j.Resume(t.Context(), job.ID, "ann", "go on")
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, 4, job.Done)
		n, err = s.Count(t.Context(), "orders", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 4, n.Messages)
	})
}

// Regression: if others had added a line to the log, a job that could not write its end
// retried without a pause.
func TestJobsRun_LogCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Engine: memory.Open()}
		j := jobsOf(t, s)
		job, err := j.Start(t.Context(), merge(0))
		require.NoError(t, err)
		planted := store.Record{Kind: "log", Name: "000000000002", Value: "x"}
		write := func() error {
			return s.Engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, planted) })
		}
		require.NoError(t, write())
		time.AfterFunc(time.Hour, func() {
			planted.Version, planted.Value = 1, ""
			_ = write()
		})
		failure := ""
		job, err = j.Run(t.Context(), job.ID, func(job jobs.Job) {
			if job.Error != "" {
				failure = job.Error
			}
		})
		require.NoError(t, err)
		require.Equal(t, "done", job.State())
		require.Less(t, s.updates, 1000)
		require.Equal(t, store.ErrChanged.Error(), failure)
	})
}

// counting counts transactions, each of which takes a millisecond.
type counting struct {
	*memory.Engine
	updates int
}

func (c *counting) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	c.updates++
	time.Sleep(time.Millisecond)
	return c.Engine.Update(ctx, f)
}

// Law J1: a process that dies between two transactions leaves the messages and the
// progress of its job as one step has left them.
func TestJobsRun_ProcessDies(t *testing.T) {
	for last := 1; ; last++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			s := memory.Open()
			for i := range 1100 {
				require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
			}
			j := jobsOf(t, s)
			job, err := j.Start(t.Context(), merge(0))
			require.NoError(t, err)
			ctx, die := context.WithCancel(t.Context())
			defer die()
			_, err = jobsOf(t, &dying{Engine: s, left: last, die: die}).Run(ctx, job.ID, nil)
			died = err != nil
			job, err = j.Get(t.Context(), job.ID)
			require.NoError(t, err)
			n, err := s.Count(t.Context(), "orders", store.Filter{})
			require.NoError(t, err)
			require.Equal(t, n.Messages, job.Done, "after %d transactions", last)
			job, err = j.Run(t.Context(), job.ID, nil)
			require.NoError(t, err)
			require.Equal(t, jobs.Progress{Done: 1100}, job.Progress)
		})
		if !died {
			require.Greater(t, last, 3)
			return
		}
	}
}

// dying lets a process end after some transactions.
type dying struct {
	*memory.Engine
	left int
	die  func()
}

func (d *dying) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	err := d.Engine.Update(ctx, f)
	if d.left--; d.left == 0 {
		d.die()
	}
	return err
}

// outage is a store whose first updates fail.
type outage struct {
	*memory.Engine
	left int
}

func (o *outage) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	o.left--
	if o.left >= 0 {
		return errors.New("connection refused")
	}
	return o.Engine.Update(ctx, f)
}

// The number of similar failures is logged after a minute, even if the store works again.
func TestWork_LineAboutFailuresAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder // written by Work only
		j, err := jobs.New(&outage{memory.Open(), 2}, jobs.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil)
		}()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 2, strings.Count(log.String(), "this worker cannot report itself"), log.String())
		require.Contains(t, log.String(), "failures=1")
		end()
		<-ended
	})
}

// Regression (law D4): one job that could not be read stopped all jobs of an engine, and
// the heartbeats of its workers.
func TestJobsRun_JobThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		for i := range 10 {
			require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
		}
		var log strings.Builder
		j, err := jobs.New(s, jobs.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		var ids []int
		for range 3 {
			job, err := j.Start(t.Context(), merge(0))
			require.NoError(t, err)
			ids = append(ids, job.ID)
		}
		require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			rs, err := tx.Records(ctx, "job", "", 3)
			require.NoError(t, err)
			rs[0].Value = "{"
			rs[1].Value = `{"id":2,"do":"merge","queue":"dead","rate":"fast","format":7}` // of a later version
			worker := store.Record{Kind: "worker", Name: "w", Value: "{"}
			return errors.Join(err, tx.Write(ctx, rs[0]), tx.Write(ctx, rs[1]), tx.Write(ctx, worker))
		}))
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, []jobs.Worker{{ID: "w"}}, workers)

		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil)
		list, err := j.List(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, "done", list[0].State())
		require.Equal(t, 10, list[0].Done)
		require.Equal(t, "unreadable", list[1].State())
		require.Equal(t, "unreadable", list[2].State())
		require.Equal(t, ids[0], list[2].ID)
		require.Contains(t, list[2].Error, "cannot be read")
		require.Equal(t, 2, strings.Count(log.String(), "cannot be read, and does not run"), log.String())

		_, err = j.Run(t.Context(), ids[0], nil)
		require.ErrorContains(t, err, "cannot be read")
		_, err = j.Pause(t.Context(), ids[0], "ann", "test")
		require.ErrorContains(t, err, "cannot be read")
		job, err := j.Cancel(t.Context(), ids[0], "ann", "it is damaged")
		require.NoError(t, err)
		require.Equal(t, "cancelled", job.State())
		_, err = j.Cancel(t.Context(), ids[1], "ann", "test")
		require.ErrorContains(t, err, "later version")
		list, err = j.List(t.Context())
		require.NoError(t, err)
		require.Equal(t, "cancelled", list[2].State())
	})
}

// Regression (law D4): an unreadable order hid the orders for the backends behind it from
// workers, and no backend could be held.
func TestBackendOrders_OneCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		j := jobsOf(t, s)
		require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "backend", Name: "a", Value: `{"backend":"a","limit":"auto"}`})
		}))
		_, err := j.HoldBackend(t.Context(), "b", "ann", "test")
		require.NoError(t, err)
		_, err = j.LimitBackend(t.Context(), "a", 1, "ann", "test")
		require.ErrorContains(t, err, `the order for backend "a" cannot be read`)
		list, err := j.BackendOrders(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, "a", list[0].Backend)
		require.Zero(t, list[0].At)

		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		var got []string
		j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, func(o jobs.BackendOrder) { got = append(got, o.Backend) })
		require.Equal(t, []string{"b"}, got)
	})
}

// Regression: a worker whose context ended while its heartbeat was on the way stayed in
// the list for two minutes.
func TestWorkers_EndsDuringItsHeartbeat(t *testing.T) {
	e := &lastWords{Engine: memory.Open()}
	j := jobsOf(t, e)
	ctx, end := context.WithCancel(t.Context())
	e.end = end
	j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil)
	require.Equal(t, 1, e.kept)
	left, err := j.Workers(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
}

// lastWords stores records. Its first Update ends the context, and returns the context's
// error.
type lastWords struct {
	*memory.Engine

	end  func()
	kept int
}

func (e *lastWords) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	err := e.Engine.Update(ctx, f)
	if err == nil && e.kept == 0 {
		e.kept++
		e.end()
		return ctx.Err()
	}
	return err
}

// Law W4: an order of a later version keeps what this one does not know, whatever is
// ordered.
func TestLimitBackend_OrderOfALaterVersion(t *testing.T) {
	s := memory.Open()
	j := jobsOf(t, s)
	const later = `"share":{"of":[1,2.50]},"until":"noon"`
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{
			Kind: "backend", Name: "a",
			Value: `{"backend":"a","event":"hold","held":"migration (bob)","by":"bob","why":"migration","at":"2026-01-02T03:04:05Z",` + later + `}`,
		})
	}))
	for range 2 {
		o, err := j.LimitBackend(t.Context(), "a", 5, "ann", "test")
		require.NoError(t, err)
		require.Equal(t, "migration (bob)", o.Held)
		rs, err := s.Records(t.Context(), "backend", "", 2)
		require.NoError(t, err)
		require.Len(t, rs, 1)
		require.Contains(t, rs[0].Value, `"limit":5`)
		require.True(t, strings.HasSuffix(rs[0].Value, ","+later+"}"), rs[0].Value)
	}
}

// A hold reaches workers within two seconds, even on an engine that does not announce
// changes.
func TestHoldBackend_WithoutAWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := jobsOf(t, struct{ store.Keeper }{memory.Open()})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		heard := make(chan time.Time, 10)
		go j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, func(jobs.BackendOrder) { heard <- time.Now() }) // ends with ctx
		time.Sleep(time.Minute + time.Nanosecond)                                                                    // just after the worker has looked
		ordered := time.Now()
		_, err := j.HoldBackend(t.Context(), "pay", "ann", "test")
		require.NoError(t, err)
		require.LessOrEqual(t, (<-heard).Sub(ordered), 2*time.Second)
	})
}

// crowded is an engine that refuses writes while its disk is full.
type crowded struct {
	store.Keeper
	full    *atomic.Bool
	refused *atomic.Int64
}

func (c crowded) check() error {
	if !c.full.Load() {
		return nil
	}
	c.refused.Add(1)
	return fmt.Errorf("test: %w", store.ErrFull)
}

func (c crowded) Update(ctx context.Context, f func(ctx context.Context, tx store.Tx) error) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Keeper.Update(ctx, f)
}

func (c crowded) Locks() lock.Locks { return crowdedLocks{c.Keeper.Locks(), c} }

type crowdedLocks struct {
	lock.Locks
	disk crowded
}

func (l crowdedLocks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if err := l.disk.check(); err != nil {
		return lock.Grant{}, err
	}
	return l.Locks.Acquire(ctx, name, owner, lease)
}

func (l crowdedLocks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if err := l.disk.check(); err != nil {
		return err
	}
	return l.Locks.Extend(ctx, g, d)
}

func (l crowdedLocks) Release(ctx context.Context, g lock.Grant) error {
	if err := l.disk.check(); err != nil {
		return err
	}
	return l.Locks.Release(ctx, g)
}

// Law D5: a job waits while the disk is full, and continues when there is room.
func TestJobsRun_FullDisk(t *testing.T) {
	for name, fillsAfter := range map[string]time.Duration{"before it starts": 0, "while it runs": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var full atomic.Bool
				var refused atomic.Int64
				s := memory.Open()
				for i := range 10 {
					require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
				}
				j := jobsOf(t, crowded{s, &full, &refused})
				job, err := j.Start(t.Context(), merge(1))
				require.NoError(t, err)

				var shown atomic.Value // the error of the job that was shown last
				shown.Store("")
				type end struct {
					job jobs.Job
					err error
				}
				ended := make(chan end, 1)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				full.Store(fillsAfter == 0)
				go func() {
					job, err := j.Run(ctx, job.ID, func(job jobs.Job) { shown.Store(job.Error) })
					ended <- end{job, err}
				}()
				time.Sleep(fillsAfter)
				full.Store(true)
				time.Sleep(10 * time.Minute)
				select {
				case e := <-ended:
					t.Fatalf("the job ended on a full disk: %v", e.err)
				default:
				}
				require.Contains(t, shown.Load(), "store: full", "people see why the job waits")
				require.Less(t, refused.Load(), int64(300), "the pauses grow")

				full.Store(false)
				time.Sleep(2 * time.Minute)
				e := <-ended
				require.NoError(t, e.err)
				require.Equal(t, "done", e.job.State())
				require.Equal(t, 10, e.job.Done)
				require.Empty(t, e.job.Error)
			})
		})
	}
}

func TestJobState(t *testing.T) {
	now := time.Now()
	for want, job := range map[string]jobs.Job{
		"running":   {},
		"paused":    {Paused: true},
		"done":      {Ended: now},
		"cancelled": {Cancelled: true, Ended: now, Paused: true},
	} {
		require.Equal(t, want, job.State())
	}
}

// A few messages that are tried are named by the job, without those that stayed.
func TestJobsRun_SentIDs(t *testing.T) {
	for _, c := range []struct {
		most int
		sent []string
	}{{2, []string{"0", "2"}}, {10, []string{"0", "2", "3", "4"}}, {11, nil}, {0, nil}} {
		e := memory.Open()
		for i := range 5 {
			m := letter(i)
			m.Meta.ID = fmt.Sprint(i)
			m.Meta.UnsafeToRepeat = i == 1
			require.NoError(t, e.Put(t.Context(), "dead", m))
		}
		j := jobsOf(t, e)
		spec := merge(0)
		spec.Max = c.most
		job, err := j.Start(t.Context(), spec)
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, c.sent, job.Sent)
		_, err = readLog(t, j)
		require.NoError(t, err)
	}
}

// Only a merge names its messages: jobs are kept, and removed messages must not be.
func TestJobsRun_SentIDsOfAMergeOnly(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "dead", letter(1)))
	j := jobsOf(t, e)
	job, err := j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "dead", Max: 3, By: "ann", Why: "test"})
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	require.Equal(t, 1, job.Done)
	require.Empty(t, job.Sent)
}

// The rate of a job can be changed while it runs, even if its next step is hours away.
func TestJobsSetRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		for i := range 10 {
			require.NoError(t, e.Put(t.Context(), "dead", letter(i)))
		}
		j := jobsOf(t, e)
		job, err := j.Start(t.Context(), merge(1.0/3600))
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil) // ends with ctx
		time.Sleep(time.Minute)
		job, err = j.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, 1, job.Done)
		job, err = j.SetRate(t.Context(), job.ID, 0.1, "bob", "the bank is quick")
		require.NoError(t, err)
		require.InDelta(t, 0.1, job.Rate, 0)
		time.Sleep(time.Minute)
		job, err = j.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.GreaterOrEqual(t, job.Done, 5)
		require.LessOrEqual(t, job.Done, 8, "not faster than the new rate")
		_, err = j.SetRate(t.Context(), job.ID, 0, "bob", "at once")
		require.NoError(t, err)
		time.Sleep(30 * time.Second)
		job, err = j.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "done", job.State())
		lines, err := readLog(t, j)
		require.NoError(t, err)
		require.Equal(t, "rate", lines[1].Event)
		require.Equal(t, "the bank is quick", lines[1].Why)
		require.InDelta(t, 0.1, lines[1].Job.Rate, 0)
	})
}

func TestJobsSetRate_Refused(t *testing.T) {
	e := memory.Open()
	j := ranJobs(t, e) // 1 is done, 5 runs
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1)} {
		_, err := j.SetRate(t.Context(), 5, rate, "ann", "why")
		require.ErrorContains(t, err, "must be 0 or a positive number")
	}
	_, err := j.SetRate(t.Context(), 1, 5, "ann", "why")
	require.ErrorContains(t, err, "job 1 is over: it is done")
	_, err = j.SetRate(t.Context(), 5, 5, "ann", "")
	require.ErrorContains(t, err, "why?")
}

// A change of the rate does not end the pause after messages that were sent just now, even
// if another process continues the job. Regression: the next step was due after 10 ms.
func TestJobsSetRate_PauseAfterAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		for i := range 300 {
			require.NoError(t, e.Put(t.Context(), "dead", letter(i)))
		}
		j := jobsOf(t, e)
		job, err := j.Start(t.Context(), merge(100))
		require.NoError(t, err)
		run := func(d time.Duration) (done int) {
			ctx, end := context.WithTimeout(t.Context(), d)
			defer end()
			_, err := j.Run(ctx, job.ID, nil)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			job, err = j.Get(t.Context(), job.ID)
			require.NoError(t, err)
			return job.Done
		}
		require.Equal(t, 100, run(500*time.Millisecond))
		for _, rate := range []float64{99, 50} {
			_, err = j.SetRate(t.Context(), job.ID, rate, "bob", "slower")
			require.NoError(t, err)
		}
		require.Equal(t, 100, run(400*time.Millisecond))
		require.Equal(t, 150, run(500*time.Millisecond))
		_, err = j.SetRate(t.Context(), job.ID, 100, "bob", "as before")
		require.NoError(t, err)
		require.Equal(t, 150, run(200*time.Millisecond), "50 messages take half a second")
		require.Equal(t, 250, run(500*time.Millisecond))
	})
}

// The pause of a very low rate is cut, so it does not tell how many messages it makes up
// for: at least one.
func TestJobsSetRate_PauseOfALowRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		for i := range 3 {
			require.NoError(t, e.Put(t.Context(), "dead", letter(i)))
		}
		j := jobsOf(t, e)
		job, err := j.Start(t.Context(), merge(1e-9))
		require.NoError(t, err)
		ctx, end := context.WithTimeout(t.Context(), time.Second/2)
		defer end()
		_, err = j.Run(ctx, job.ID, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		job, err = j.SetRate(t.Context(), job.ID, 0.5, "bob", "quicker")
		require.NoError(t, err)
		require.Equal(t, 1, job.Done)
		require.Equal(t, 2*time.Second, time.Until(job.Next))
	})
}
