package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/guard"
)

// collectAtOnce bounds the removals under one lock.
const collectAtOnce = 256

const marksAtOnce = 500

// arm sets the timer while there is something to collect. It runs under mu.
func (r *Results) arm() {
	if r.timer != nil || r.closed {
		return
	}
	r.timer = r.clock.AfterFunc(max(r.config.AnswerAge/8, time.Millisecond), r.collectByTimer)
}

func (r *Results) collectByTimer() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.timed.Add(1)
	r.mu.Unlock()
	defer r.timed.Done()
	var g guard.Guard
	defer g.Close(func(recovered any) { // law A6
		r.mu.Lock()
		r.stats.CollectErrors++
		r.mu.Unlock()
		guard.Logger(nil).Error("exactlyonce: collecting Records panicked", "error", guard.Recovered("exactlyonce", recovered))
	})
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.timer = nil
		if len(r.principals)+len(r.marks)+len(r.asked) > 0 {
			r.arm()
		}
	}()
	_ = r.Collect(r.life) // counted by CollectErrors; the next collection tries again
	g.Returned()
}

// Collect removes records that have reached their age, and hands the marks of clients to
// Records, which collect by the same ages. A timer calls it eight times during AnswerAge.
// The error comes from Records.
func (r *Results) Collect(ctx context.Context) error {
	now := r.now()
	r.mu.Lock()
	for _, p := range slices.Collect(maps.Values(r.principals)) {
		for r.removeDue(p, now, collectAtOnce, nil, false) == collectAtOnce {
			r.mu.Unlock() // let other calls take the lock
			r.mu.Lock()
		}
		r.leave(p)
	}
	for c := range r.lagging {
		r.sweep(c, max(collectAtOnce, c.count))
	}
	r.mu.Unlock()
	if r.config.Records == nil {
		return nil
	}
	r.mu.Lock()
	r.renew(now)
	r.mu.Unlock()
	err := errors.Join(r.acknowledge(ctx), r.tellAsked(ctx), r.collectRecords(ctx))
	if err != nil {
		r.mu.Lock()
		r.stats.CollectErrors++
		r.mu.Unlock()
	}
	return err
}

func (r *Results) acknowledge(ctx context.Context) error {
	begun := r.now()
	r.mu.Lock()
	marks := make([]exactlyonce.Request, 0, len(r.marks))
	for key, before := range r.marks {
		marks = append(marks, exactlyonce.Request{Scope: key.scope, ID: exactlyonce.ID{Client: key.client, First: before}})
	}
	r.mu.Unlock()
	var failed error
	for some := range slices.Chunk(marks, marksAtOnce) { // a failing mark delays only the others in its call
		if err := r.config.Records.Acknowledge(ctx, some); err != nil {
			failed = errors.Join(failed, fmt.Errorf("exactlyonce: acknowledge %d marks: %w", len(some), err))
			continue
		}
		r.mu.Lock()
		for _, m := range some {
			key := clientKey{m.Scope, m.Client}
			if r.marks[key] == m.First {
				delete(r.marks, key)
			}
			if c := r.clients[key]; c != nil {
				c.confirmed = begun
			}
		}
		r.mu.Unlock()
	}
	return failed
}

func (r *Results) tellAsked(ctx context.Context) error {
	r.mu.Lock()
	asked := r.asked
	r.asked = map[askedKey]struct{}{}
	r.mu.Unlock()
	requests := make([]exactlyonce.Request, 0, len(asked))
	for a := range asked {
		requests = append(requests, exactlyonce.Request{ID: exactlyonce.ID{Client: a.client, Sequence: a.seq, Step: a.step, Attempt: 1}, Scope: a.scope})
	}
	var failed error
	for some := range slices.Chunk(requests, marksAtOnce) {
		if err := r.toucher.Touch(ctx, some); err != nil {
			failed = errors.Join(failed, fmt.Errorf("exactlyonce: touch %d answers: %w", len(some), err))
		}
	}
	return failed
}

func (r *Results) collectRecords(ctx context.Context) error {
	now := r.clock.Now()
	_, _, err := r.config.Records.Collect(ctx, now.Add(-r.config.AnswerAge), now.Add(-r.config.ClientSilence))
	if err != nil {
		return fmt.Errorf("exactlyonce: collect records: %w", err)
	}
	return nil
}

// Close stops the timer and hands the rest to Records. Running calls may still end, and
// new calls are tracked, but only Collect collects records. The error comes from Records.
func (r *Results) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.endLife()
	r.timed.Wait()
	return r.Collect(ctx)
}
