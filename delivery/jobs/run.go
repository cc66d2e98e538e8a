package jobs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
	"github.com/weirflow/weir/message"
)

const (
	stepSize  = 499              // most messages of a step: JetStream has 1,000 in a transaction, two for each moved message
	firstWait = time.Second      // after a failed step; it doubles
	lastWait  = 30 * time.Second // at most
	maxPause  = 24 * time.Hour   // between two messages of a low rate
	mostSent  = 10               // highest Spec.Max of a job that keeps its messages' ids
	watchEach = 200 * time.Millisecond
	lookEach  = 20 * time.Second // how often a waiting job checks whether it was stopped
)

// Run runs a job in this process unless another process does, and returns it when it is
// over or paused, or when ctx ends: then others can continue it. Older jobs of its queue
// run first. While the engine is full ([store.ErrFull]), the job waits with that Error.
// progress, which may be nil, gets the job from time to time.
func (j *Jobs) Run(ctx context.Context, id int, progress func(Job)) (Job, error) {
	if progress == nil {
		progress = func(Job) {}
	}
	job, err := j.Get(ctx, id)
	if err != nil || !job.runs() {
		return job, err
	}
	running, stop := context.WithCancel(ctx)
	queue := job.Queue
	var full fullness
	ended := make(chan error, 1)
	run := func() { ended <- j.runWhenRoom(running, queue, &full) }
	isRunning := true
	go run() // the deferred function waits for it
	defer func() {
		stop()
		if isRunning {
			<-ended //nolint:errcheck // it was broken off
		}
	}()
	ticker := j.Clock.Ticker(watchEach)
	defer ticker.Stop()
	for {
		select {
		case err = <-ended:
			isRunning = false
		case <-ticker.C:
		case <-ctx.Done():
			return job, context.Cause(ctx)
		}
		now, readErr := j.Get(ctx, id)
		if readErr == nil {
			job = now
			job.Error = cmp.Or(job.Error, full.reason())
			progress(job)
		}
		switch {
		case readErr == nil && !job.runs():
			return job, nil
		case isRunning:
		case err == nil || guard.Is(err, lock.ErrLost): // the job was resumed just now, or another process has it
			isRunning = true
			go run()
		default:
			return job, err
		}
	}
}

// fullness is why a job waits for a full engine. Safe for concurrent use.
type fullness struct{ text atomic.Pointer[string] }

// set notes the error of a full engine, or nil if there is room.
func (f *fullness) set(err error) {
	if err == nil {
		f.text.Store(nil)
		return
	}
	text := guard.Text(err)
	f.text.Store(&text)
}

func (f *fullness) reason() string {
	text := f.text.Load()
	if text == nil {
		return ""
	}
	return *text
}

// runWhenRoom repeats runUnderLock after a pause while the engine is too full to keep the
// lock (law D5).
func (j *Jobs) runWhenRoom(ctx context.Context, queue string, full *fullness) error {
	pause := firstWait
	for {
		err := j.runUnderLock(ctx, queue, func() {
			full.set(nil)
			pause = firstWait
		})
		if !guard.Is(err, store.ErrFull) {
			return err
		}
		full.set(err)
		j.Logger.LogAttrs(ctx, slog.LevelWarn, "jobs: the engine is full, and the jobs of the queue wait",
			slog.String("queue", queue), slog.String("error", guard.Text(err)), slog.Duration("wait", pause))
		if err := wait.For(ctx, j.Clock, pause); err != nil {
			return err
		}
		pause = min(2*pause, lastWait)
	}
}

// runUnderLock waits for the lock of a queue, and runs all of its jobs. locked, which may
// be nil, is called with the lock held. If the lock is lost, the error is lock.ErrLost.
func (j *Jobs) runUnderLock(ctx context.Context, queue string, locked func()) error {
	return lock.Hold(ctx, j.engine.Locks(), "weir-jobs/"+queue, j.runner, j.Lease, func(ctx context.Context, _ lock.Grant) error {
		if locked != nil {
			locked()
		}
		err := j.runAll(ctx, queue)
		if ctx.Err() != nil {
			return context.Cause(ctx) // a SQL driver reports only that it was interrupted
		}
		return err
	}, lock.WithClock(j.Clock))
}

func (j *Jobs) runAll(ctx context.Context, queue string) error {
	for {
		list, err := all(ctx, j.engine, kindJob)
		if err != nil {
			return err
		}
		next := slices.IndexFunc(list, func(job Job) bool { return job.Queue == queue && job.runs() })
		if next < 0 {
			return nil
		}
		if err := j.run(ctx, list[next]); err != nil {
			return err
		}
	}
}

// run makes steps of a job until it is over, paused, or ctx ends. It repeats failed
// steps.
func (j *Jobs) run(ctx context.Context, job Job) error {
	pause := firstWait
	size := stepSize
	changed := 0 // steps in a row that another transaction has overtaken
	for job.runs() {
		next, again, err := j.step(ctx, job, size)
		switch {
		case err == nil:
			job = next
			pause = firstWait
			size = min(2*size, stepSize)
			changed = 0
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, message.ErrRefused) && size > 1:
			size = 1 // to find the message that the engine refuses
		case guard.Is(err, store.ErrChanged) && changed < conflicts:
			changed++
			job = j.latest(ctx, job) // paused or cancelled
		default:
			j.Logger.LogAttrs(ctx, slog.LevelWarn, "jobs: a step failed, and is retried",
				slog.Int("job", job.ID), slog.String("error", guard.Text(err)), slog.Duration("wait", pause))
			j.noteError(ctx, job, err)
			again = pause
			pause = min(2*pause, lastWait)
		}
		job, err = j.rest(ctx, job, again)
		if err != nil {
			return err
		}
	}
	return nil
}

// rest waits before the next step, and returns the current job. It ends early when the
// job is stopped or its rate is changed.
func (j *Jobs) rest(ctx context.Context, job Job, d time.Duration) (Job, error) {
	rate := job.Rate
	for ; d > 0 && job.runs() && job.Rate == rate; d -= lookEach {
		if err := wait.For(ctx, j.Clock, min(d, lookEach)); err != nil {
			return job, err
		}
		job = j.latest(ctx, job)
	}
	return job, nil
}

// latest returns the current job, if that can be read.
func (j *Jobs) latest(ctx context.Context, job Job) Job {
	if now, err := j.Get(ctx, job.ID); err == nil {
		return now
	}
	return job
}

// noteError stores why a job does not continue, if possible.
func (j *Jobs) noteError(ctx context.Context, job Job, cause error) {
	job.Error, job.Runner = guard.Text(cause), j.runner
	_ = j.engine.Update(ctx, func(ctx context.Context, tx store.Tx) error { return j.write(ctx, tx, &job, "", "", "") })
}

// step makes one step of a job in one transaction, and returns the job and the next wait.
func (j *Jobs) step(ctx context.Context, job Job, size int) (_ Job, _ time.Duration, err error) {
	if job.Uncounted {
		job, err = j.countTotal(ctx, job)
		return job, 0, err
	}
	// The List of local claims the entries. The entries that stay are released.
	if l, ok := j.engine.(*local); ok {
		defer func() { err = errors.Join(err, l.release(ctx, job.Queue)) }()
	}
	entries, err := j.entries(ctx, job, size)
	if err != nil {
		return job, 0, err
	}
	var following *queuePass // set if a job with Family ends a pass and begins the next
	if len(entries) == 0 {
		following, err = j.nextPass(ctx, &job)
		if err != nil {
			return job, 0, err
		}
	}
	next, again := job, time.Duration(0)
	isShort := false // leave the keys out of the record of cancelled keys, which may be too large
	change := func(ctx context.Context, tx store.Tx) error {
		now := tx.Now().UTC()
		next, again = job, job.Next.Sub(now)
		if again > 0 { // too early: another process has made the last step, or the clocks differ
			return nil
		}
		next.Error, next.Runner = "", j.runner
		if following != nil {
			next.In, next.Again = following.queue, following.isAgain
			next.After, next.Until = following.after, following.until
			return j.write(ctx, tx, &next, "", "", "")
		}
		if len(entries) == 0 {
			next.Ended = now
			return j.write(ctx, tx, &next, "end", next.By, next.Why)
		}
		if before, err := get(ctx, tx, job.ID); err != nil || before.version != job.version || !before.runs() {
			return cmp.Or(err, store.ErrChanged) // before the edits: local cannot undo them
		}
		edits := next.plan(entries, now)
		done, err := tx.Edit(ctx, edits...)
		if err != nil {
			return err
		}
		again = next.count(edits, done, entries, now)
		if next.Family && slices.Contains(done, true) {
			err = noteCancelled(ctx, tx, next.Queue, next.Filter.Key, isShort)
			if err != nil {
				return err
			}
		}
		return j.write(ctx, tx, &next, "", "", "")
	}
	err = j.engine.Update(ctx, change)
	if job.Family && errors.Is(err, message.ErrRefused) {
		isShort = true
		err = j.engine.Update(ctx, change)
	}
	if len(entries) == 1 && errors.Is(err, message.ErrRefused) {
		return j.skip(ctx, job, entries[0], err)
	}
	return next, again, err
}

// countTotal counts the messages of a job, as its first step.
func (j *Jobs) countTotal(ctx context.Context, job Job) (Job, error) {
	counts, err := j.Matching(ctx, job.Spec)
	if err != nil {
		return job, err
	}
	next := job
	err = j.engine.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		next = job
		next.Uncounted, next.Total = false, 0
		for _, n := range counts {
			next.Total += n.Messages
		}
		next.Error, next.Runner = "", j.runner
		return j.write(ctx, tx, &next, "", "", "")
	})
	if err != nil {
		return job, err
	}
	return next, nil
}

// entries returns the messages of the next step of a job, or an empty list at the end of
// its pass.
func (j *Jobs) entries(ctx context.Context, job Job, size int) ([]store.Entry, error) {
	if job.Rate > 0 {
		size = max(1, min(size, int(min(job.Rate, stepSize)))) // a second's worth
	}
	if job.Max > 0 {
		size = min(size, job.Max-job.Done)
	}
	if size < 1 || job.Until <= job.After {
		return nil, nil
	}
	return j.engine.List(ctx, job.queue(), job.Filter, store.Page{After: job.After, Until: job.Until, Max: size})
}

func (j *Job) count(edits []store.Edit, done []bool, entries []store.Entry, now time.Time) (again time.Duration) {
	j.noteSent(edits, done)
	n := 0
	for _, ok := range done {
		if ok {
			n++
		}
	}
	j.Done += n
	j.Skipped += len(done) - n
	j.After = entries[len(entries)-1].Position
	if j.Rate > 0 && n > 0 {
		again = pauseFor(float64(n), j.Rate)
		j.Next = now.Add(again)
	}
	return again
}

// pauseFor returns the pause after n messages at a rate.
func pauseFor(n, rate float64) time.Duration {
	return time.Duration(min(n/rate*float64(time.Second), float64(maxPause)))
}

func (j *Job) noteSent(edits []store.Edit, done []bool) {
	if j.Do != store.Merge || j.Max < 1 || j.Max > mostSent {
		return
	}
	for i, e := range edits {
		id := e.Entry.Meta.ID
		if done[i] && id != "" && utf8.ValidString(id) {
			j.Sent = append(slices.Clip(j.Sent), id)
		}
	}
}

// skip leaves a message alone that the engine refuses to change.
func (j *Jobs) skip(ctx context.Context, job Job, e store.Entry, cause error) (Job, time.Duration, error) {
	j.Logger.LogAttrs(ctx, slog.LevelWarn, "jobs: the engine refuses a message, which stays",
		slog.Int("job", job.ID), slog.String("message", e.Meta.ID), slog.String("error", guard.Text(cause)))
	next := job
	err := j.engine.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		next = job
		next.Skipped++
		next.After = e.Position
		next.Runner = j.runner
		return j.write(ctx, tx, &next, "", "", "")
	})
	return next, 0, err
}

// plan returns the edits of entries, and counts the entries that stay.
func (j *Job) plan(entries []store.Entry, now time.Time) (edits []store.Edit) {
	for _, e := range entries {
		if j.In != "" && !j.Bounds.includes(j.In, &e) {
			continue // it was put after the start
		}
		edit := store.Edit{Do: j.Do, Queue: j.queue(), Entry: e, To: j.To}
		if j.Do == store.Merge {
			if !j.SendsBack(&e, now, &j.Progress) {
				continue
			}
			m := e.Clone()
			failed.ResetForMerge(&m.Meta, now)
			m.Meta.MergeJob = j.ID
			m.Cause, m.Delay = "", 0
			edit.Entry.Message = m
		}
		edits = append(edits, edit)
	}
	return edits
}
