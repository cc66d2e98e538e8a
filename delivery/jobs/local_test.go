package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failing is an engine that keeps no jobs, and whose Move fails now and then.
type failing struct {
	store.Inspector
	moves *int
}

func (f failing) Move(ctx context.Context, moves ...store.Move) error {
	if *f.moves++; len(moves) > 0 && *f.moves%3 == 2 {
		return errors.New("not now")
	}
	return f.Inspector.Move(ctx, moves...)
}

func letter(i int) store.Message {
	return store.Message{Meta: message.Meta{ID: strconv.Itoa(i), Visit: 3, Provider: "bank" + strconv.Itoa(i%2)}, Cause: store.Exhausted}
}

// An engine that keeps no jobs makes messages due as well.
func TestLocalDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		m := letter(1)
		m.Delay = time.Hour
		require.NoError(t, s.Put(t.Context(), "orders-retry-1", m))
		j, err := jobs.New(failing{s, new(int)}, jobs.Config{Local: true, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		job, err := j.Start(t.Context(), jobs.Spec{Do: store.Due, Queue: "orders-retry-1", By: "ann", Why: "test"})
		require.NoError(t, err)
		require.Equal(t, 2, job.Format, "an earlier version does not run it")
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, jobs.Progress{Done: 1}, job.Progress)
		ms, err := s.Take(t.Context(), "orders-retry-1", 9, time.Minute)
		require.NoError(t, err)
		require.Len(t, ms, 1)
		require.Equal(t, 0, ms[0].Lapses)
	})
}

// An engine that keeps no jobs merges and purges within the process.
func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		for i := range 450 {
			require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
		}
		doubt, looping, leased := letter(1001), letter(2001), letter(3001)
		doubt.Meta.UnsafeToRepeat, looping.Meta.Merges = true, 5
		require.NoError(t, s.Put(t.Context(), "dead", doubt, looping, leased))
		claimed, err := s.Claim(t.Context(), "dead", store.Filter{IDs: []string{"3001"}}, store.Page{Max: 1}, time.Hour)
		require.NoError(t, err)
		require.Len(t, claimed, 1)

		j, err := jobs.New(failing{s, new(int)}, jobs.Config{Local: true, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		spec := jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", Filter: store.Filter{Provider: "bank1"}, By: "ann", Why: "test"}
		job, err := j.Start(t.Context(), spec)
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, jobs.Progress{Done: 225, Looping: 1, Unsafe: 1}, job.Progress)
		left, err := s.List(t.Context(), "dead", store.Filter{Provider: "bank1"}, store.Page{Max: 1000})
		require.NoError(t, err)
		require.Len(t, left, 3)
		require.Zero(t, left[0].LeasedUntil, "what stays is released")
		require.Zero(t, left[1].LeasedUntil)

		spec = jobs.Spec{Do: store.Purge, Queue: "dead", Max: 10, By: "ann", Why: "test"}
		job, err = j.Start(t.Context(), spec)
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, 10, job.Done)
		n, err := s.Count(t.Context(), "", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, n.Messages)

		spec.Do = store.Hold
		_, err = j.Start(t.Context(), spec)
		require.ErrorContains(t, err, "does not hold messages")
		_, err = jobs.New(failing{s, nil}, jobs.Config{})
		require.ErrorContains(t, err, "does not keep jobs")
	})
}

// eachItsOwn is an engine whose queues count their positions by themselves, and whose
// calls take time.
type eachItsOwn struct{ store.Inspector }

// shift is the difference between a position of the second queue and the position in the
// engine.
const shift = 300

func (e eachItsOwn) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	if queue == "dead b" {
		p.After, p.Until = p.After+shift, p.Until+shift
	}
	claimed, err := e.Inspector.Claim(ctx, queue, f, p, lease)
	for i := range claimed {
		if queue == "dead b" {
			claimed[i].Position -= shift
		}
	}
	time.Sleep(time.Second)
	return claimed, err
}

func (e eachItsOwn) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	c, err := e.Inspector.Count(ctx, queue, f)
	if queue == "dead b" {
		c.Last -= shift
	}
	return c, err
}

// Regression: a step of one job gave back what another one, of another queue, had
// claimed, or took it for its own.
func TestLocalJobsOfTwoQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		for _, queue := range []string{"dead a", "dead b"} {
			for i := range shift {
				require.NoError(t, s.Put(t.Context(), queue, letter(i)))
			}
		}
		j := jobsOf(t, eachItsOwn{s})
		ended := make(chan jobs.Job)
		for _, queue := range []string{"a", "b"} {
			job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "dead " + queue, To: queue, By: "ann", Why: "test"})
			require.NoError(t, err)
			go func() { // ends with the job
				job, _ := j.Run(t.Context(), job.ID, nil)
				ended <- job
			}()
		}
		for range 2 {
			job := <-ended
			require.Equal(t, jobs.Progress{Done: shift}, job.Progress)
		}
		for _, queue := range []string{"a", "b"} {
			n, err := s.Count(t.Context(), queue, store.Filter{})
			require.NoError(t, err)
			require.Equal(t, shift, n.Messages)
		}
	})
}

// A job that cannot continue reports why, and continues when it can.
func TestLocal_StepThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Limit(12))
		for i := range 10 {
			require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
		}
		e := &full{Engine: s, until: time.Now().Add(time.Minute)}
		j := newJobs(t, e)
		job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", By: "ann", Why: "test"})
		require.NoError(t, err)
		failure := ""
		begun := time.Now()
		job, err = j.Run(t.Context(), job.ID, func(job jobs.Job) {
			if job.Error != "" {
				failure = job.Error
			}
		})
		require.NoError(t, err)
		require.Equal(t, 10, job.Done)
		require.Empty(t, job.Error)
		require.ErrorContains(t, store.ErrFull, failure)
		require.InDelta(t, 60, time.Since(begun).Seconds(), 31)
	})
}

// full is an engine that has no room until a time.
type full struct {
	*memory.Engine
	until time.Time
}

func (f *full) Update(ctx context.Context, g func(context.Context, store.Tx) error) error {
	return f.Engine.Update(ctx, func(ctx context.Context, tx store.Tx) error { return g(ctx, fullTx{tx, f}) })
}

type fullTx struct {
	store.Tx
	f *full
}

func (t fullTx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	if time.Now().Before(t.f.until) {
		return nil, store.ErrFull
	}
	return t.Tx.Edit(ctx, edits...)
}

// A message that the engine refuses stays, and does not block others.
func TestLocal_RefusedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		for i := range 20 {
			require.NoError(t, s.Put(t.Context(), "dead", letter(i)))
		}
		j := newJobs(t, &refusing{s})
		job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", By: "ann", Why: "test"})
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, jobs.Progress{Done: 19, Skipped: 1}, job.Progress)
	})
}

// refusing refuses a message.
type refusing struct{ *memory.Engine }

func (r *refusing) Update(ctx context.Context, g func(context.Context, store.Tx) error) error {
	return r.Engine.Update(ctx, func(ctx context.Context, tx store.Tx) error { return g(ctx, refusingTx{tx}) })
}

type refusingTx struct{ store.Tx }

func (t refusingTx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	for _, e := range edits {
		if e.Entry.Meta.ID == "7" {
			return nil, message.ErrRefused
		}
	}
	return t.Tx.Edit(ctx, edits...)
}
