package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// Kinds of records.
const (
	kindJob    = "job"       // jobs that have not ended, so that workers find them at once
	kindEnded  = "job-ended" // ended jobs
	kindLine   = "log"
	kindHead   = "log-head"
	kindWorker = "worker"

	kindCancelled = "cancelled" // last cancelled keys, by queue
	kindPaused    = "paused"    // queues that people have paused
	kindHeld      = "held-key"  // keys that people hold
	kindGroups    = "groups"    // last counted groups of dead letters, by queue
	kindHistory   = "history"   // minutes of the last 24 hours, by hour and queue
)

const (
	defaultLease = 30 * time.Second
	kept         = 1000 // ended jobs; the log has all
	page         = 1000 // records read at once
	conflicts    = 100  // failed transactions in a row before giving up
)

// Config are the settings of [New].
type Config struct {
	Lease  time.Duration // after which another process continues a killed process's jobs; default 30 s
	Clock  clock.Clock   // for waits; default: the machine's
	Logger *slog.Logger  // for failures, at warn level; default slog.Default()

	// CountTime, unless it is 0, bounds the time for which [Jobs.Start] counts messages.
	// If it does not suffice, the job is [Job].Uncounted, and its messages are counted
	// when it runs.
	CountTime time.Duration

	// Local keeps jobs and log in this process, until its end, if the engine is a
	// [store.Inspector] but not a [store.Keeper]. Such jobs only merge, purge and make
	// due, and leave leased messages alone. If the process is killed, its claimed
	// messages return after 30 s; then start the job again.
	Local bool

	// Offset, if not nil, gets the [Worker.ClockOffset] of each report of [Jobs.Work]. It
	// must not block.
	Offset func(d time.Duration)

	// Cancelled, if not nil, is called by [Jobs.Work] when a job with [Spec].Family has
	// removed messages: with the queue of the job, and the key of its filter, or "" if
	// unknown. It is called within about a second, perhaps several times for a job. On an
	// engine that cannot announce a change ([store.Keeper].Watch), such as JetStream and
	// SQLite, Work reads a record for each queue that had a cancelled key, once a second
	// while Busy returns true (nil means always).
	Cancelled func(queue, key string)
	Busy      func() bool

	// QueuesPaused, if not nil, is called by [Jobs.Work] with the queues that people have
	// paused ([Jobs.PauseQueue]): at the start, within about a second of each change, and
	// perhaps again. With an error they could not be read, and the last orders hold. On
	// an engine that cannot announce a change, the process reads them once a second for
	// all of its workers. It must not block.
	QueuesPaused func(paused []QueueOrder, err error)

	// KeysHeld, if not nil, is called by [Jobs.Work] with the keys that people hold
	// ([Jobs.HoldKey]), as QueuesPaused is, and before it.
	KeysHeld func(held []KeyOrder, err error)
}

// Jobs are the jobs of an engine. Safe for concurrent use.
type Jobs struct {
	engine store.Keeper
	runner string // names this process
	Config
}

// New returns the jobs of an engine. It returns an error if the engine is not a
// [store.Keeper], unless [Config] has Local.
func New(e store.Engine, c Config) (*Jobs, error) {
	keeper, ok := e.(store.Keeper)
	inspector, isInspector := e.(store.Inspector)
	if isInspector && !ok && c.Local {
		keeper = &local{Inspector: inspector, memory: memory.Open(), claimed: map[entryRef]store.Lease{}}
		ok = true
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("jobs: a %T does not keep jobs: it is not a store.Keeper", e)
	case c.Lease < 0:
		return nil, fmt.Errorf("jobs: the lease %v is negative", c.Lease)
	case c.CountTime < 0:
		return nil, fmt.Errorf("jobs: CountTime %v is negative: use 0 for no limit", c.CountTime)
	}
	c.Lease = cmp.Or(c.Lease, defaultLease)
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	c.Logger = guard.Logger(c.Logger)
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return &Jobs{keeper, fmt.Sprintf("%s, process %d", strings.ToValidUTF8(host, "?"), os.Getpid()), c}, nil
}

// update runs f in a transaction, and again if another transaction was faster.
func (j *Jobs) update(ctx context.Context, f func(ctx context.Context, tx store.Tx) error) (err error) {
	for range conflicts {
		err = j.engine.Update(ctx, f)
		if !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
	return err
}

// Start starts a job, and returns it with its id, which is the number of its line in the
// log. It affects the messages that match now. [Config].CountTime bounds the time for
// which it counts them.
func (j *Jobs) Start(ctx context.Context, s Spec) (Job, error) {
	if err := s.check(); err != nil {
		return Job{}, err
	}
	if s.Do == store.Merge {
		s.MaxMerges = cmp.Or(s.MaxMerges, DefaultMaxMerges)
	}
	if _, ok := j.engine.(*local); ok && (s.Do == store.Hold || s.Do == store.Release) {
		return Job{}, fmt.Errorf("jobs: this engine does not %s messages: it is not a store.Keeper", s.Do)
	}
	if _, ok := j.engine.(*local); ok && s.Family {
		return Job{}, errors.New("jobs: this engine keeps no jobs, so it cannot cancel the calls that run: it is not a store.Keeper. " +
			"Use SQLite, PostgreSQL or JetStream, or purge the queue, its layers and its dead letters with Engine.Purge and a filter of the key")
	}
	found, err := j.matchingNow(ctx, &s)
	if err != nil {
		return Job{}, err
	}
	var job Job
	err = j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		id, err := nextID(ctx, tx)
		if err != nil {
			return err
		}
		job = Job{ID: id, Spec: s, Total: found.total, Uncounted: found.isUncounted, Until: found.until, Format: s.format(), Bounds: found.bounds}
		job.Begun = tx.Now().UTC()
		if err := j.write(ctx, tx, &job, "start", s.By, s.Why); err != nil {
			return err
		}
		return forget(ctx, tx)
	})
	return job, err
}

// matching describes the messages of a new job.
type matching struct {
	total       int
	isUncounted bool    // total is not known
	until       int64   // position of the last of them in the job's queue, or a later one
	bounds      *bounds // with Spec.Family, or nil
}

func (j *Jobs) matchingNow(ctx context.Context, s *Spec) (matching, error) {
	if !s.Family {
		return j.matchingIn(ctx, s.Queue, s.Filter)
	}
	of, err := familyOf(ctx, j.engine, s.Queue)
	if err != nil {
		return matching{}, err
	}
	b, total, err := readBounds(ctx, j.engine, of, s.Filter)
	if err != nil {
		return matching{}, err
	}
	dead, err := j.matchingIn(ctx, of.dead, s.Filter)
	if dead.until > 0 {
		b.Last[of.dead] = dead.until
	}
	return matching{total: total + dead.total, isUncounted: dead.isUncounted, until: b.Last[s.Queue], bounds: b}, err
}

// matchingIn counts messages of a queue. If that takes longer than CountTime, it finds
// the last position of the queue instead, which takes a few reads.
func (j *Jobs) matchingIn(ctx context.Context, queue string, f store.Filter) (matching, error) {
	counting, cancel := ctx, context.CancelFunc(func() {})
	if j.CountTime > 0 {
		counting, cancel = context.WithTimeout(ctx, j.CountTime)
	}
	defer cancel()
	n, err := j.engine.Count(counting, queue, f)
	if err == nil || counting.Err() == nil || ctx.Err() != nil {
		return matching{total: n.Messages, until: n.Last}, err
	}
	lister := store.Lister(j.engine)
	if l, ok := j.engine.(*local); ok {
		lister = l.Inspector // the List of local claims messages
	}
	last, err := storearg.LastPosition(ctx, lister, queue)
	return matching{isUncounted: true, until: last}, err
}

// forget removes the oldest ended jobs, if there are many.
func forget(ctx context.Context, tx store.Tx) error {
	rs, err := tx.Records(ctx, kindEnded, "", kept+page)
	for _, r := range rs[:max(0, len(rs)-kept)] {
		if err == nil {
			r.Value = ""
			err = tx.Write(ctx, r)
		}
	}
	return err
}

// writeEnded writes the record of a job that was done at once, so that it has no earlier
// record, and a line of the log with the job.
func writeEnded(ctx context.Context, tx store.Tx, line Line) error {
	text, err := json.Marshal(line.Job)
	if err != nil {
		return fmt.Errorf("jobs: job %d: %w", line.Job.ID, err)
	}
	err = tx.Write(ctx, store.Record{Kind: kindEnded, Name: lineName(line.Job.ID), Value: string(text)})
	if err != nil {
		return err
	}
	err = forget(ctx, tx)
	if err != nil {
		return err
	}
	return appendLine(ctx, tx, line)
}

func (j *Jobs) write(ctx context.Context, tx store.Tx, job *Job, event, by, why string) error {
	b, err := json.Marshal(job)
	if err != nil {
		return fmt.Errorf("jobs: job %d: %w", job.ID, err)
	}
	r := store.Record{Kind: kindJob, Name: lineName(job.ID), Version: job.version, Value: string(b)}
	if !job.Ended.IsZero() {
		if err := tx.Write(ctx, store.Record{Kind: kindJob, Name: lineName(job.ID), Version: job.version}); err != nil {
			return err
		}
		r.Kind = kindEnded
		r.Version = 0
		job.version = 0
	}
	if err := tx.Write(ctx, r); err != nil {
		return err
	}
	job.version++
	if event == "" {
		return nil
	}
	return appendLine(ctx, tx, Line{At: tx.Now().UTC(), Event: event, By: by, Why: why, Job: *job})
}

// Get returns a job. The error matches [fs.ErrNotExist] if the id is unknown; jobs that
// ended long ago are only in the log. For an unreadable job, it returns an error, and a
// Job with the known fields.
func (j *Jobs) Get(ctx context.Context, id int) (Job, error) { return get(ctx, j.engine, id) }

// List returns all unfinished jobs and the last 1,000 of the others, the newest first.
// The State of a job that cannot be read is unreadable.
func (j *Jobs) List(ctx context.Context) ([]Job, error) {
	open, err := all(ctx, j.engine, kindJob)
	if err != nil {
		return nil, err
	}
	list, err := all(ctx, j.engine, kindEnded)
	for _, job := range open { // one may have ended just now
		if !slices.ContainsFunc(list, func(other Job) bool { return other.ID == job.ID }) {
			list = append(list, job)
		}
	}
	slices.SortFunc(list, func(a, b Job) int { return b.ID - a.ID })
	return list, err
}

type reader interface {
	Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error)
}

func get(ctx context.Context, from reader, id int) (Job, error) {
	for _, kind := range []string{kindJob, kindEnded} { // it goes from the first to the second
		rs, err := from.Records(ctx, kind, lineName(id-1), 1)
		if err != nil {
			return Job{}, err
		}
		if len(rs) == 1 && rs[0].Name == lineName(id) {
			return readJob(rs[0])
		}
	}
	return Job{}, missingError(id)
}

// missingError is the error for an unknown job id. The text of fs.ErrNotExist is about a
// file.
type missingError int

func (id missingError) Error() string { return fmt.Sprintf("jobs: there is no job %d", int(id)) }

func (missingError) Is(target error) bool { return target == fs.ErrNotExist }

func all(ctx context.Context, from reader, kind string) (list []Job, err error) {
	err = each(ctx, from, kind, func(r store.Record) error {
		job, _ := readJob(r) // an unreadable job does not block others
		list = append(list, job)
		return nil
	})
	return list, err
}

func each(ctx context.Context, from reader, kind string, f func(r store.Record) error) error {
	for after := ""; ; {
		rs, err := from.Records(ctx, kind, after, page)
		if err != nil {
			return err
		}
		for _, r := range rs {
			if err := f(r); err != nil {
				return err
			}
			after = r.Name
		}
		if len(rs) < page {
			return nil
		}
	}
}

// record returns the record with an ASCII name, or a record of version 0.
func record(ctx context.Context, from reader, kind, name string) (store.Record, error) {
	for after := name[:len(name)-1]; ; {
		rs, err := from.Records(ctx, kind, after, 1)
		switch {
		case err != nil:
			return store.Record{}, err
		case len(rs) == 0 || rs[0].Name > name:
			return store.Record{Kind: kind, Name: name}, nil
		case rs[0].Name == name:
			return rs[0], nil
		}
		after = rs[0].Name
	}
}

// Pause stops a job until [Jobs.Resume]. Its effects so far stay. A paused job stays as
// it is.
func (j *Jobs) Pause(ctx context.Context, id int, by, why string) (Job, error) {
	return j.order(ctx, id, "pause", by, why, func(job *Job, _ time.Time) bool {
		was := job.Paused
		job.Paused = true
		return !was
	})
}

// Resume continues a paused job. Workers find it within 20 s; [Jobs.Run] runs it at once.
func (j *Jobs) Resume(ctx context.Context, id int, by, why string) (Job, error) {
	return j.order(ctx, id, "resume", by, why, func(job *Job, _ time.Time) bool {
		was := job.Paused
		job.Paused = false
		return was
	})
}

// Cancel ends a job, even if it cannot be read. Its effects so far stay.
func (j *Jobs) Cancel(ctx context.Context, id int, by, why string) (Job, error) {
	return j.order(ctx, id, "cancel", by, why, func(job *Job, now time.Time) bool {
		job.Cancelled = true
		job.Paused = false
		job.Ended = now
		return true
	})
}

// SetRate changes the rate of a job, in messages a second; 0 means no limit. A running
// job obeys within 20 s. The line of the log has the event "rate".
func (j *Jobs) SetRate(ctx context.Context, id int, rate float64, by, why string) (Job, error) {
	if !(rate >= 0) || math.IsInf(rate, 1) {
		return Job{}, fmt.Errorf("jobs: the rate %v of job %d must be 0 or a positive number of messages a second", rate, id)
	}
	return j.order(ctx, id, "rate", by, why, func(job *Job, now time.Time) bool {
		was := job.Rate
		job.Rate = rate
		soonest := now
		if rate > 0 {
			owed := job.Next.Sub(now).Seconds() * was // the messages for which it pauses
			soonest = now.Add(pauseFor(max(owed, 1), rate))
		}
		if job.Next.After(soonest) {
			job.Next = soonest
		}
		return was != rate
	})
}

// order changes a job that is not over. The job is written if change returns true.
func (j *Jobs) order(ctx context.Context, id int, event, by, why string, change func(job *Job, now time.Time) bool) (job Job, err error) {
	if by == "" || why == "" {
		return Job{}, fmt.Errorf("jobs: who wants to %s the job, and why?", event)
	}
	var refused error
	err = j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		refused = nil
		job, err = get(ctx, tx, id)
		if err != nil && (!job.unreadable || event != "cancel") {
			return err
		}
		job.unreadable = false
		switch {
		case !job.Ended.IsZero():
			refused = fmt.Errorf("jobs: %s: job %d is over: it is %s", event, id, job.State())
		case job.Format > format:
			refused = fmt.Errorf("jobs: %s: job %d is of a later version of weir", event, id)
		case change(&job, tx.Now().UTC()):
			return j.write(ctx, tx, &job, event, by, why)
		}
		return nil
	})
	return job, errors.Join(err, refused)
}
