// Package outbox publishes messages that were staged in a transaction to another system:
// a job that belongs to a change of the database is sent if and only if the change was
// committed.
//
// The job is staged beside the change:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "UPDATE bookings SET paid = true WHERE id = $1", id); err != nil {
//			return err
//		}
//		return postgres.PutTx(ctx, tx, mails, mail, delivery.ID("receipt/"+id)) // mails is delivery.NewQueue[Mail](engine, "outbox")
//	})
//
// and a relay, which can run in every process, sends it:
//
//	err := outbox.Relay(ctx, engine, engine.Locks(), outbox.Config{Queue: mails.Name(), Publish: publish})
//
// Consumers that use the same database do not need a relay: the queue is an ordinary
// delivery.Queue.
//
// # Guarantees
//
// A staged message is published at least once, even if processes are killed, and keeps
// its id. A message of a transaction that was rolled back is never published. Messages
// are published in the order of their positions, in sequential batches; a message with a
// delay is not published before it is due by the relay's clock. Only messages for which
// Publish has returned nil are removed: not a message of a transaction that commits late,
// whatever its position, nor another message with the same id.
//
// # Failures
//
// After an error of Publish, messages are published individually, until the batch is
// done. If the first message fails ten times in a row, for about ten seconds, each
// further attempt is for the next message: up to 16 of them, then a pause of up to 5 s.
// Once a message succeeds, the system is up, so the messages that failed before it are
// refused: they are tried again, then wait for 1 s, then twice as long, up to 10 minutes,
// while the others are published. For 10 minutes after that, the next message is tried as
// soon as one fails. So refused messages, however many, delay the others by about ten
// seconds in all. A refused message loses its place. An outage of more than ten seconds,
// or of any length within 10 minutes after a message was refused, may change the order by
// one message.
//
// A message refused 16 times, which takes about an hour, goes to the dead letters: the
// queue with the outbox's name followed by " dead", such as "mails dead", and not the
// DeadLetters of a delivery.Queue. While every message fails, all stay. An error that
// matches [store.ErrFull] refuses no messages: they are tried again each second. A
// message that is damaged in the store goes to the dead letters at once, with the cause
// [store.Undecodable].
//
// A message whose relay died while it published may have killed it. From then on it is
// published alone, and after the fifth relay that died with it, it goes to the dead
// letters, with the cause [store.Lapsed].
//
// A single relay works at a time, by the lock of the queue's name. If its process dies,
// another takes over when the lease has ended. A relay that was stopped for longer than
// its lease may publish a batch a second time.
package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
)

const (
	defaultBatch   = 100
	defaultLease   = 15 * time.Second
	defaultMaxPoll = time.Second
	minPoll        = 10 * time.Millisecond
	maxRetry       = 5 * time.Second

	patience    = 10               // failures in a row until another message is tried
	maxTries    = 16               // messages then tried without a pause
	maxRefusals = 16               // of a message, until it is a dead letter
	minRefused  = time.Second      // first wait of a message refused again
	maxRefused  = 10 * time.Minute // and the longest
	publishing  = 2 * time.Second  // a message's lease; shorter than the lock's, so the next relay need not wait for it
	maxDoubts   = 1000             // failed messages in a row that are remembered
)

// Config configures [Relay]. Queue and Publish are required.
type Config struct {
	Queue string // of the staged messages; also the name of the lock
	// Publish sends messages. When it returns nil they are durable. After an error they
	// are sent again, individually, after a back-off of 10 ms to 5 s.
	Publish func(ctx context.Context, ms []store.Message) error

	Owner   string        // in the lock; default: host name and process id
	Batch   int           // messages at once; default 100
	Lease   time.Duration // of the lock; default 15 s
	MaxPoll time.Duration // longest pause between polls of an empty queue, from 10 ms doubling; default 1 s
	Logger  *slog.Logger  // logs errors at warn level; default slog.Default()
	Clock   clock.Clock   // default: the machine's
}

func (c *Config) complete() error {
	switch {
	case c.Queue == "":
		return errors.New("outbox: Queue is empty")
	case c.Publish == nil:
		return errors.New("outbox: Publish is nil")
	case c.Batch < 0 || c.Lease < 0 || c.MaxPoll < 0:
		return fmt.Errorf("outbox: Batch %d, Lease %v and MaxPoll %v must not be negative", c.Batch, c.Lease, c.MaxPoll)
	}
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		c.Owner = fmt.Sprintf("%s, process %d", host, os.Getpid())
	}
	if c.Batch == 0 {
		c.Batch = defaultBatch
	}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	if c.MaxPoll == 0 {
		c.MaxPoll = defaultMaxPoll
	}
	c.Logger = guard.Logger(c.Logger)
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	return nil
}

// Relay publishes the messages of a queue while it has the lock, until ctx ends, and
// returns its cause. Errors of the store, the locks and Publish do not end it. It must be
// its queue's only consumer; any number of relays may run. On an engine that keeps jobs,
// each reports every 20 s and runs jobs, as a worker does: see package jobs.
func Relay(ctx context.Context, s store.Inspector, locks lock.Locks, c Config) error {
	if err := c.complete(); err != nil {
		return err
	}
	r := &relay{
		Config: c, store: s, notified: make(chan struct{}, 1), refused: map[int64]refusal{}, due: map[int64]bool{},
	}
	listening, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() {
		leases.Listen(listening, s, c.Queue, c.Clock, c.Logger, func(bool) { settle.Wake(r.notified) })
	})
	if j, err := jobs.New(s, jobs.Config{Clock: c.Clock, Logger: c.Logger}); err == nil { // otherwise the engine keeps no jobs
		beside.Go(func() { j.Work(listening, r.about, nil) })
	}
	defer func() {
		r.release(ctx, nil)
		stop()
		beside.Wait()
	}()
	wait := minPoll
	for ctx.Err() == nil {
		r.worked = false
		err := lock.Hold(ctx, locks, c.Queue, c.Owner, c.Lease, func(ctx context.Context, _ lock.Grant) error { return r.run(ctx) }, lock.WithClock(c.Clock))
		if ctx.Err() != nil {
			break
		}
		if r.worked {
			wait = minPoll
		}
		c.Logger.Warn("weir: an outbox's relay was interrupted", "queue", c.Queue, "error", err)
		r.sleep(ctx, wait)
		wait = min(2*wait, maxRetry)
	}
	return context.Cause(ctx)
}

type relay struct {
	Config
	store    store.Inspector
	notified chan struct{} // capacity 1
	worked   bool          // published something since it got the lock

	// Failures of Publish. A message is refused only after another one was published
	// since.
	failures  int            // in a row
	doubt     int64          // up to this position, messages go one by one
	probed    int64          // the last message that failed alone; 0 after a success
	doubted   []store.Leased // failed alone since the last success
	refused   map[int64]refusal
	refusedAt time.Time // when a message was refused again

	// How the messages behind the first are tried, after patience has ended.
	pauses int // since something was published
	tried  int // messages since the last pause

	// Leases to be settled or released. Others would count as the leases of a dead relay.
	published []store.Lease
	back      []store.Lease
	due       map[int64]bool // released messages, due although the store's clock may set a later time

	mu       sync.Mutex // guards the fields below
	reported report
}

// report has a relay's numbers, named as workers name theirs.
type report struct {
	Received, Acknowledged, Nacked int
	LastError                      string
	LastFailure                    time.Time
	Failures                       int // in a row
}

func (r *relay) about() jobs.Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, _ := json.Marshal(r.reported)
	return jobs.Worker{Outbox: r.Queue, Counts: text, Operators: []json.RawMessage{text}}
}

func (r *relay) note(n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reported.Received += n
	if err == nil {
		r.reported.Acknowledged, r.reported.Failures = r.reported.Acknowledged+n, 0
		return
	}
	r.reported.Nacked += n
	r.reported.LastError = guard.Text(err)
	r.reported.LastFailure = r.Clock.Now().UTC()
	r.reported.Failures = r.reported.Failures + 1
}

// refusal is the state of a message that failed while others did not.
type refusal struct {
	times int
	until time.Time // it waits
}

func (r *relay) run(ctx context.Context) error {
	poll := minPoll
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := r.batch(ctx)
		switch {
		case err != nil:
			return err
		case n > 0:
			poll = minPoll
		default:
			poll = min(2*poll, r.MaxPoll)
			if r.idle(ctx, poll) {
				poll = minPoll
			}
		}
	}
}

// batch publishes the next messages and removes them. It returns how many it has tried.
func (r *relay) batch(ctx context.Context) (int, error) {
	var after int64
	if r.failures > patience { // otherwise from the first one
		after = r.probed
	}
	if err := r.settle(ctx); err != nil {
		return 0, err
	}
	entries, err := r.next(ctx, after)
	if err == nil && len(entries) == 0 && after > 0 { // again from the first one
		r.tried = 0
		r.sleep(ctx, maxRetry)
		entries, err = r.next(ctx, 0)
	}
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	leased, err := r.claim(ctx, entries)
	claimed := len(leased)
	for i := range leased { // law W5
		l := &leased[i]
		l.Meta.Put = storearg.OriginOfPut(r.Queue, &l.Meta, l.Position, l.Lease.Entry)
	}
	if err == nil {
		leased, err = r.undamaged(ctx, leased)
	}
	if err == nil {
		leased, err = r.suspects(ctx, leased)
	}
	if err != nil || len(leased) == 0 {
		return claimed, err
	}
	ms := make([]store.Message, len(leased))
	for i, l := range leased {
		ms[i] = l.Message
	}
	if err := r.Publish(ctx, ms); err != nil {
		r.release(ctx, leased)
		if ctx.Err() != nil {
			return 0, errors.Join(context.Cause(ctx), err)
		}
		r.note(len(ms), err)
		r.failed(ctx, leased, err)
		return len(ms), nil
	}
	r.failures, r.probed = 0, 0
	r.pauses, r.tried = 0, 0
	r.note(len(ms), nil)
	for _, l := range leased {
		r.published = append(r.published, l.Lease)
		delete(r.refused, l.Position)
		delete(r.due, l.Position)
	}
	if err := r.settle(ctx); err != nil { // law D1: after it was confirmed
		return 0, err
	}
	r.worked = true
	return len(ms), r.refuse(ctx)
}

func (r *relay) settle(ctx context.Context) error {
	if len(r.published) > 0 {
		if err := r.store.Done(ctx, r.published...); err != nil && !storearg.IsLost(err) { // purged meanwhile
			return err
		}
		r.published = nil
	}
	if len(r.back) > 0 {
		if err := r.store.Release(ctx, 0, r.back...); err != nil && !storearg.IsLost(err) {
			return err
		}
		r.back = nil
	}
	return nil
}

// release releases unpublished messages and other owed leases, even after the end of ctx:
// the relay has not died.
func (r *relay) release(ctx context.Context, leased []store.Leased) {
	if len(r.due) >= maxDoubts {
		clear(r.due)
	}
	for _, l := range leased {
		r.back = append(r.back, l.Lease)
		r.due[l.Position] = true
	}
	releasing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	limit := r.Clock.AfterFunc(publishing, cancel)
	_ = r.settle(releasing) // tried again
	limit.Stop()
	cancel()
}

// undamaged returns the readable messages. The others become dead letters (law W2).
func (r *relay) undamaged(ctx context.Context, leased []store.Leased) (whole []store.Leased, err error) {
	for i, l := range leased {
		if l.Damage == nil {
			whole = append(whole, l)
			continue
		}
		l.Cause, l.Meta.LastError = store.Undecodable, guard.Text(l.Damage)
		if err := r.bury(ctx, l); err != nil {
			r.release(ctx, append(whole, leased[i+1:]...))
			return nil, err
		}
	}
	return whole, nil
}

// suspects returns the messages to publish now. A message whose relay died is alone,
// since it may kill its process, and others with it (law D4). A message that has killed
// many becomes a dead letter (law W2).
func (r *relay) suspects(ctx context.Context, leased []store.Leased) ([]store.Leased, error) {
	if !slices.ContainsFunc(leased, func(l store.Leased) bool { return l.Lapses > 0 }) {
		return leased, nil
	}
	r.doubt = max(r.doubt, leased[len(leased)-1].Position)
	if len(leased) > 1 {
		r.release(ctx, leased[1:])
	}
	first := leased[0]
	if first.Lapses < settle.MaxLapses {
		return leased[:1], nil
	}
	first.Cause, first.Meta.LastError = store.Lapsed, settle.LapsedError(first.Lapses).Error()
	return nil, r.bury(ctx, first)
}

type lister = func(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error)

// next returns the first messages after a position that are due and do not wait; a single
// one while a message is in doubt. All pages come from one snapshot: otherwise a
// transaction that commits between two pages would break the order.
func (r *relay) next(ctx context.Context, after int64) (due []store.Entry, err error) {
	due, enough, err := r.nextOf(ctx, r.store.List, after, 1)
	if err != nil || enough {
		return due, err
	}
	s, ok := r.store.(store.Snapshotter)
	if !ok {
		due, _, err = r.nextOf(ctx, r.store.List, after, math.MaxInt)
		return due, err
	}
	err = s.Snapshot(ctx, func(list lister) error {
		due, _, err = r.nextOf(ctx, list, after, math.MaxInt)
		return err
	})
	return due, err
}

// nextOf is next for a number of pages. enough is true if more pages would hardly enlarge
// the batch.
func (r *relay) nextOf(ctx context.Context, list lister, after int64, pages int) (due []store.Entry, enough bool, err error) {
	// Always from the beginning: a late transaction has a low position.
	seen := map[int64]bool{}
	size := 0
	page := store.Page{After: after, Max: r.Batch}
	for range pages {
		entries, err := list(ctx, r.Queue, store.Filter{}, page)
		if err != nil {
			return nil, false, err
		}
		now := r.Clock.Now()
		listed := 0 // bytes
		for _, e := range entries {
			listed += len(e.Payload)
			refused, known := r.refused[e.Position]
			seen[e.Position] = known
			// Law D3. A leased message is being merged.
			if e.Held || e.Meta.Due.After(now) && !r.due[e.Position] || e.LeasedUntil.After(now) || refused.until.After(now) {
				continue
			}
			if refused.times > 0 && len(due) > 0 { // goes alone
				return due, true, nil
			}
			size += len(e.Payload)
			due = append(due, e)
			alone := refused.times > 0 || due[0].Position <= r.doubt || r.failures > 0
			if alone || len(due) == r.Batch || size >= storearg.MaxBytes {
				return due, true, nil
			}
		}
		if len(entries) == 0 || len(entries) < page.Max && listed < storearg.MaxBytes { // the end
			if after == 0 { // all listed: the others were purged
				maps.DeleteFunc(r.refused, func(p int64, _ refusal) bool { return !seen[p] })
			}
			return due, true, nil
		}
		if 2*len(due) >= page.Max {
			return due, true, nil
		}
		page.After = entries[len(entries)-1].Position
	}
	return due, false, nil
}

func (r *relay) failed(ctx context.Context, entries []store.Leased, err error) {
	if errors.Is(err, store.ErrFull) { // it has not refused the messages
		r.Logger.Warn("weir: the target of an outbox is full; its messages are tried again", "queue", r.Queue, "messages", len(entries), "after", time.Second, "error", err)
		r.sleep(ctx, time.Second)
		return
	}
	last := &entries[len(entries)-1]
	r.doubt = max(r.doubt, last.Position)
	if len(entries) == 1 {
		last.Meta.LastError = guard.Text(err)
		r.probed = last.Position
		if len(r.doubted) == maxDoubts {
			r.doubted = nil
		}
		r.doubted = append(r.doubted, *last)
		if r.refused[last.Position].times > 0 || r.Clock.Since(r.refusedAt) < maxRefused {
			r.failures = max(r.failures, patience) // this message is refused; the system seems up
		}
	}
	pause := r.nextPause()
	r.failures++
	r.Logger.Warn("weir: an outbox's messages could not be published and are tried again", "queue", r.Queue, "messages", len(entries), "after", pause, "error", err)
	if pause > 0 {
		r.sleep(ctx, pause)
	}
}

// nextPause returns how long to wait after a failure: with patience for the first
// message, longer each time. Then more and more messages are tried before each pause.
func (r *relay) nextPause() time.Duration {
	if r.failures < patience {
		return min(maxRetry, minPoll<<r.failures)
	}
	r.tried++
	if r.tried < min(maxTries, 2<<min(r.pauses, patience)) {
		return 0
	}
	pause := min(maxRetry, minPoll<<min(r.pauses, patience))
	r.pauses, r.tried = r.pauses+1, 0
	return pause
}

// refuse is called after a success, so earlier failures were not due to an outage.
func (r *relay) refuse(ctx context.Context) error {
	doubted := r.doubted
	r.doubted = nil
	counted := map[int64]bool{}
	for _, e := range doubted {
		if counted[e.Position] { // count an outage once
			continue
		}
		counted[e.Position] = true
		refused := r.refused[e.Position]
		if refused.times++; refused.times > 1 { // the first may have been an outage
			r.refusedAt = r.Clock.Now()
			refused.until = r.refusedAt.Add(min(maxRefused, minRefused<<(refused.times-2)))
		}
		r.refused[e.Position] = refused
		if refused.times < maxRefusals {
			continue
		}
		leased, err := r.claim(ctx, []store.Entry{{Message: e.Message, Position: e.Position}})
		if err != nil {
			return err
		}
		for _, l := range leased {
			l.Cause, l.Meta.LastError = store.Exhausted, e.Meta.LastError
			l.Meta.Attempts += refused.times
			if err := r.bury(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *relay) bury(ctx context.Context, l store.Leased) error {
	m := l.Message
	settle.DropPointsTo(&m.Meta)
	m.Meta.Due = time.Time{}
	m.Meta.Visit = max(1, m.Meta.Visit)
	settle.NoteFailure(&m.Meta, r.Clock.Now())
	r.Logger.Error("weir: a message of an outbox goes to the dead letters",
		"queue", r.Queue, "id", m.Meta.ID, "cause", m.Cause.String(), "dead letters", storearg.OutboxDeadOf(r.Queue), "error", m.Meta.LastError)
	delete(r.refused, l.Position)
	delete(r.due, l.Position)
	err := r.store.Move(ctx, store.Move{Lease: l.Lease, Queue: storearg.OutboxDeadOf(r.Queue), Message: m})
	if storearg.IsLost(err) { // purged meanwhile
		return nil
	}
	if err != nil {
		r.release(ctx, []store.Leased{l})
	}
	return err
}

// claim leases exactly these entries, not another message with such an id.
func (r *relay) claim(ctx context.Context, entries []store.Entry) (leased []store.Leased, err error) {
	ours := make(map[int64]bool, len(entries))
	ids := make([]string, len(entries))
	for i, e := range entries {
		ours[e.Position], ids[i] = true, e.Meta.ID
	}
	lease := min(publishing, r.Lease/2+1)
	first := entries[0].Position
	page := store.Page{After: first - 1, Until: entries[len(entries)-1].Position, Max: r.Batch}
	for page.After < page.Until {
		claimed, err := r.store.Claim(ctx, r.Queue, store.Filter{IDs: ids}, page, lease)
		if err != nil {
			r.release(ctx, leased)
			return nil, err
		}
		if len(claimed) == 0 {
			break
		}
		page.After = claimed[len(claimed)-1].Position
		for _, c := range claimed {
			if ours[c.Position] {
				leased = append(leased, c)
			} else if err := r.store.Release(ctx, max(0, c.Meta.Due.Sub(r.Clock.Now())), c.Lease); err != nil && !storearg.IsLost(err) {
				r.release(ctx, leased)
				return nil, err
			}
		}
	}
	if len(leased) > 0 && leased[0].Position == first {
		return leased, nil
	}
	// A store cannot find a damaged message by its id.
	claimed, err := r.store.Claim(ctx, r.Queue, store.Filter{}, store.Page{After: first - 1, Until: first, Max: 1}, lease)
	if err != nil {
		r.release(ctx, leased)
		return nil, err
	}
	return append(claimed, leased...), nil
}

// idle waits for a notification, at most for d, and reports whether there was one.
func (r *relay) idle(ctx context.Context, d time.Duration) bool {
	timer := r.Clock.Timer(d)
	defer timer.Stop()
	select {
	case <-r.notified:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (r *relay) sleep(ctx context.Context, d time.Duration) {
	_ = wait.For(ctx, r.Clock, d) // the caller checks ctx
}
