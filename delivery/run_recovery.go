package delivery

import (
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
)

// recovery makes messages in layers due when the worker's backend recovers: the messages
// that failed because of the outage (law D3). It does so at the pace at which calls may
// start. One process at a time does this for a queue. If it dies, another process
// continues.
type recovery struct {
	backend gate.Backend
	engine  store.Keeper
	queue   string
	clock   clock.Clock
	logger  *slog.Logger
	runner  string // names this worker

	// Of the present recovery:
	engineAhead time.Duration // how far the engine's clock is ahead of the machine's
	left        int           // messages that may become due before the next pause
}

const (
	recoveryEach  = time.Second // between two looks at the backend, and between two steps of messages
	recoveryPage  = 250         // messages listed at once; a transaction of JetStream has room for 499
	recoveryLease = 30 * time.Second
	recoveryPause = time.Minute // longest pause after an error of the engine
	// recoveryLock begins the name of a lock. `weir outbox` ignores locks that begin with
	// "weir-jobs/", and no queue begins with a space.
	recoveryLock = "weir-jobs/ recovery of "
	// foundWithin is how long an outage may last before it is found. Messages whose calls
	// failed in this time may be in a layer already.
	foundWithin = time.Minute
)

// startRecoveries starts a goroutine by run for each of the worker's queues on an engine,
// if the operator has a backend.
func (w *worker[IN, OUT]) startRecoveries(h jobsEngine, run func(func())) {
	b := w.backend()
	if b == nil {
		return
	}
	for _, queue := range h.sourceQueues {
		r := &recovery{backend: b, engine: h.engine, queue: queue, clock: w.clock, logger: w.logger, runner: rand.Text()}
		ticker := w.clock.Ticker(recoveryEach)
		run(func() {
			defer ticker.Stop()
			r.watch(w.receiving, ticker)
		})
	}
}

// watch waits for recoveries of the backend until ctx ends. After a failure of the engine
// it tries again.
func (r *recovery) watch(ctx context.Context, ticker *clock.Ticker) {
	var last time.Time // beginning of the last recovery whose messages were made due
	pause := recoveryEach
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := r.backend.Report().Recovery
		if now.Pace == 0 || now.Begun.Equal(last) {
			continue
		}
		err := lock.Hold(ctx, r.engine.Locks(), recoveryLock+r.queue, r.runner, recoveryLease, func(ctx context.Context, _ lock.Grant) error {
			return r.makeAllDue(ctx, now)
		}, lock.WithClock(r.clock))
		if err == nil {
			last = now.Begun
			pause = recoveryEach
			continue
		}
		if ctx.Err() != nil {
			return
		}
		r.logger.Warn("delivery: the backend has recovered, but not all messages that failed because of its outage are due; the worker tries again",
			slog.String("queue", r.queue), slog.String("error", guard.Text(err)), slog.Duration("wait", pause))
		err = wait.For(ctx, r.clock, pause)
		if err != nil {
			return
		}
		pause = min(2*pause, recoveryPause)
	}
}

// makeAllDue makes the messages of all layers due that failed because of an outage.
func (r *recovery) makeAllDue(ctx context.Context, from gate.Recovery) error {
	name := r.backend.Report().Name
	failedIn, err := r.failedIn(ctx, from)
	if err != nil {
		return err
	}
	queues, err := r.engine.Queues(ctx)
	if err != nil {
		return err
	}
	total := 0
	r.left = 0
	for _, queue := range queues {
		if !isLayer(storearg.PartOf(queue), r.queue) {
			continue
		}
		n, err := r.makeLayerDue(ctx, queue, name, from, failedIn)
		total += n
		if err != nil {
			return err
		}
	}
	if total > 0 {
		r.logger.Info("delivery: messages that failed because of an outage are due, because the backend has recovered",
			slog.String("queue", r.queue), slog.String("backend", name), slog.Int("messages", total))
	}
	return nil
}

// failedIn returns a filter of the messages that came to a layer in the outage, by the
// engine's clock.
func (r *recovery) failedIn(ctx context.Context, from gate.Recovery) (f store.Filter, err error) {
	err = r.engine.Update(ctx, func(_ context.Context, tx store.Tx) error {
		now := r.clock.Now()
		r.engineAhead = tx.Now().Sub(now)
		// The age of the recovery is right even if the machine's clock was set since the
		// process began.
		age := now.Sub(from.Begun)
		f.Before = tx.Now().Add(-age)
		length := from.Begun.Sub(from.Outage)
		f.Since = f.Before.Add(-2*length - foundWithin) // the start of a shared outage may be reported late
		return nil
	})
	return f, err
}

// makeLayerDue makes messages of a layer due, at the pace of the backend, until it is
// down again. It returns their number.
func (r *recovery) makeLayerDue(ctx context.Context, layer, name string, from gate.Recovery, failedIn store.Filter) (total int, err error) {
	page := store.Page{Max: recoveryPage}
	for r.pace(from) > 0 {
		entries, err := r.engine.List(ctx, layer, failedIn, page)
		if err != nil || len(entries) == 0 {
			return total, err
		}
		page.After = entries[len(entries)-1].Position
		n, err := r.makePageDue(ctx, layer, r.waiting(entries, name), from)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// makePageDue makes entries of a layer due, with pauses between the steps that pace
// allows. It returns their number.
func (r *recovery) makePageDue(ctx context.Context, layer string, entries []store.Entry, from gate.Recovery) (total int, err error) {
	for len(entries) > 0 {
		if r.left == 0 {
			err := wait.For(ctx, r.clock, recoveryEach)
			if err != nil {
				return total, err
			}
			r.left = r.pace(from)
		}
		size := min(r.left, len(entries))
		if size == 0 {
			return total, nil // it is down again
		}
		n, err := r.makeDue(ctx, layer, entries[:size])
		if err != nil {
			return total, err
		}
		total += n
		r.left -= n
		entries = entries[size:]
	}
	return total, nil
}

// pace returns how many messages may become due in a step. It is 0 if the backend is down
// again.
func (r *recovery) pace(from gate.Recovery) int {
	now := r.backend.Report().Recovery
	if !now.Begun.Equal(from.Begun) {
		return 0
	}
	return int(now.Pace * recoveryEach.Seconds())
}

// waiting returns the entries of a layer that may become due: their last visits failed
// because of an outage of the backend, and no worker has taken them since. So a message
// that was taken and released, such as a snoozed message, keeps its new time.
func (r *recovery) waiting(entries []store.Entry, backend string) (all []store.Entry) {
	now := r.clock.Now().Add(r.engineAhead)
	for _, e := range entries {
		o, isOutage := failed.ReadOutage(e.Meta.Outage)
		isOfBackend := isOutage && o.Backend == backend && o.Visit == e.Meta.Visit
		wasTaken := e.Fence > 0
		if isOfBackend && !wasTaken && !e.Held && mayReturn(&e, o, now) {
			all = append(all, e)
		}
	}
	return all
}

// mayReturn reports whether a message is not due yet, and no longer waits for a delay
// that its service has demanded.
func mayReturn(e *store.Entry, o failed.Outage, now time.Time) bool {
	isWaiting := e.Meta.Due.After(now)
	earliest := e.Meta.Due.Add(-o.Early)
	return isWaiting && !earliest.After(now)
}

// makeDue makes messages due, and returns their number. The engine leaves out messages
// that are held, taken or due by now.
func (r *recovery) makeDue(ctx context.Context, layer string, entries []store.Entry) (n int, err error) {
	err = r.engine.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		n = 0
		var edits []store.Edit
		for _, e := range entries {
			o, _ := failed.ReadOutage(e.Meta.Outage)
			if mayReturn(&e, o, tx.Now()) {
				edits = append(edits, store.Edit{Do: store.Due, Queue: layer, Entry: e})
			}
		}
		if len(edits) == 0 {
			return nil
		}
		done, err := tx.Edit(ctx, edits...)
		for _, isDone := range done {
			if isDone {
				n++
			}
		}
		return err
	})
	return n, err
}
