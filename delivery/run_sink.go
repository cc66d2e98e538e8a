package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const (
	putsInARow = 3  // that fail alone: then the fault is the sink's
	maxRefused = 10 // tries of a result that the sink does not take while it takes others
)

// fill puts results into the sink until there are no more, and releases them after a
// break. So the body of the loop never waits for long.
func (w *worker[IN, OUT]) fill(results <-chan message.Message[OUT]) {
	f := filling[OUT]{results: results}
	wait := firstWait
	for w.collect(&f) {
		if w.working.Err() != nil {
			release(f.left)
			for _, r := range f.refused {
				r.message.Release()
			}
			f.left, f.refused = f.left[:0], nil
			continue
		}
		w.putAgain(&f)
		before := len(f.left)
		err := w.put(&f)
		if len(f.left) < before {
			wait = firstWait
		}
		if len(f.left) == 0 || err == nil {
			continue
		}
		// The fault is the sink's: all wait until it is back, which holds up the source
		// by the leases of what it has given.
		w.logger.Warn("delivery: the sink has failed, and its results are put again", slog.Any("error", err), slog.Int("messages", len(f.left)),
			slog.Duration("wait", wait))
		w.sleep(w.working, wait)
		wait = min(2*wait, lastWait)
	}
}

// filling is the results on their way to the sink.
type filling[OUT any] struct {
	results <-chan message.Message[OUT] // nil: closed
	left    []message.Message[OUT]      // to be put next
	refused []refusal[OUT]              // results that were not taken while others were
	took    int                         // how often the sink has taken something
	down    bool                        // it has not taken any result of left since
	few     int                         // so many of left come in portions, since it has not taken them together
}

// refusal is a result that the sink has not taken while it took others.
type refusal[OUT any] struct {
	message message.Message[OUT]
	tries   int           // those that say something about it: the first one was before another result was taken
	took    int           // filling.took at the last try
	wait    time.Duration // between the last try and the next one
	due     time.Time     // of the next try
}

// failed notes a try. One that the sink was perhaps down for does not count: an outage
// rejects nothing.
func (r *refusal[OUT]) failed(f *filling[OUT], now time.Time) {
	if f.took > r.took || r.tries > 0 && !f.down {
		r.tries++
	}
	r.took, r.wait = f.took, min(2*r.wait, lastWait)
	r.due = now.Add(r.wait)
}

// collect waits for something to put, and adds results that are at hand. It returns false
// if there will be nothing more. Refused results are bounded: it holds up others when it
// is as much as is put at once.
func (w *worker[IN, OUT]) collect(f *filling[OUT]) bool {
	if len(f.left) == 0 {
		if f.results == nil && len(f.refused) == 0 {
			return false
		}
		more, broken := f.results, w.working.Done()
		var due <-chan time.Time
		if len(f.refused) > 0 {
			timer := w.clock.Timer(max(0, f.next().Sub(w.clock.Now())))
			defer timer.Stop()
			due = timer.C
			if len(f.refused) >= w.puts {
				more = nil
			}
		} else {
			broken = nil // there is nothing to release
		}
		select {
		case m, ok := <-more:
			f.add(m, ok)
		case <-due:
		case <-broken:
		}
	}
	for f.results != nil && len(f.left)+len(f.refused) < w.puts {
		select {
		case m, ok := <-f.results:
			f.add(m, ok)
		default:
			return true
		}
	}
	return true
}

func (f *filling[OUT]) add(m message.Message[OUT], ok bool) {
	if ok {
		f.left = append(f.left, withID(m))
	} else {
		f.results = nil
	}
}

// withID returns a result that has an id, at random if need be: a sink that has taken it
// without saying so knows it again. What comes from a source has an id, but for some that
// have no engine.
func withID[OUT any](m message.Message[OUT]) message.Message[OUT] {
	if m.Meta().ID != "" { // its copy must not escape
		return m
	}
	meta := m.Meta()
	meta.ID = rand.Text()
	if !m.Pending() {
		return message.New(m.Value, &meta, nil)
	}
	return message.New(m.Value, &meta, m.Settle)
}

// worked notes that the sink has taken something.
func (f *filling[OUT]) worked() { f.took, f.down = f.took+1, false }

// next returns when the first refused result is due.
func (f *filling[OUT]) next() time.Time {
	return slices.MinFunc(f.refused, func(a, b refusal[OUT]) int { return a.due.Compare(b.due) }).due
}

// putAgain puts the refused results that are due, one by one. The last try rejects it
// (law W2).
func (w *worker[IN, OUT]) putAgain(f *filling[OUT]) {
	now := w.clock.Now()
	rest := f.refused[:0]
	for _, r := range f.refused {
		if !r.due.After(now) && w.working.Err() == nil {
			err := w.putSome([]message.Message[OUT]{r.message})
			if err == nil || !r.message.Pending() {
				f.worked()
				continue
			}
			if errors.Is(err, store.ErrFull) {
				r.due = w.clock.Now().Add(lastWait) // it has not been refused
				rest = append(rest, r)
				continue
			}
			if r.failed(f, w.clock.Now()); r.tries == maxRefused {
				w.reject(r.message, fmt.Errorf("delivery: %w: the sink has not taken it %d times: %w", message.ErrRefused, r.tries, err))
				continue
			}
		}
		rest = append(rest, r)
	}
	clear(f.refused[len(rest):])
	f.refused = rest
}

// put puts what is left into the sink, together and if that fails in portions, and those
// one by one, so that one of them does not hold up others (law D4), and costs no put for
// each. Without an error the rest is left; else all is left if the sink has taken none,
// or what it has not taken is added to refused.
func (w *worker[IN, OUT]) put(f *filling[OUT]) error {
	if len(f.left) == 0 || w.working.Err() != nil {
		return context.Cause(w.working)
	}
	n := len(f.left)
	if f.few > 0 {
		n = min(n, f.few, defaultBatch)
	}
	some, rest := f.left[:n], f.left[n:]
	err := w.putSome(some)
	if err == nil {
		f.left, f.few = rest, max(0, f.few-n)
		f.worked()
		return nil
	}
	all := slices.DeleteFunc(some, func(m message.Message[OUT]) bool { return !m.Pending() }) // the sink may have settled some
	worked := len(all) < len(some)
	if worked {
		f.worked()
	}
	f.left = slices.Concat(all, rest)
	switch {
	case len(all) > defaultBatch:
		f.few = len(all)
		return nil
	case len(all) == 1 && !worked:
		f.down = true
		return err
	}
	return w.putEach(f, all, rest, worked, err)
}

// putEach puts all one by one, after they were not taken together. rest is what is left
// beside them.
func (w *worker[IN, OUT]) putEach(f *filling[OUT], all, rest []message.Message[OUT], worked bool, err error) error {
	var failed []message.Message[OUT]
	refused := 0 // of failed: another one was taken after it
	for i := range all {
		if w.working.Err() != nil || !worked && i == putsInARow {
			f.left = slices.Concat(all[i:], rest, failed) // others first the next time
			f.down = true
			return err
		}
		switch alone := w.putSome(all[i : i+1]); {
		case alone == nil:
			worked, refused = true, len(failed)
			f.worked()
		case errors.Is(alone, store.ErrFull): // it refuses none: all wait for room
			f.left = slices.Concat(all[i:], rest, failed)
			return alone
		default:
			failed, err = append(failed, all[i]), alone
		}
	}
	f.left = slices.Concat(rest, failed)
	if f.down = !worked; f.down {
		return err
	}
	f.left, f.few = rest, max(0, f.few-len(all))
	if len(failed) == 0 {
		return nil
	}
	w.logger.Warn("delivery: the sink refuses some results, which are put again", slog.Any("error", err),
		slog.Int("messages", len(failed)), slog.String("first", failed[0].Meta().ID))
	for i, m := range failed {
		r := refusal[OUT]{message: m, took: f.took, wait: firstWait, due: w.clock.Now().Add(firstWait)}
		if i < refused {
			r.tries = 1
		}
		f.refused = append(f.refused, r)
	}
	return nil
}

// putSome puts messages into the sink, and acknowledges them then (law D1). One that the
// sink can never take is rejected (law W2).
func (w *worker[IN, OUT]) putSome(ms []message.Message[OUT]) error {
	refused := false
	err := guard.Call(func() error {
		kept := withoutPurged(ms)
		if len(kept) == 0 {
			return nil
		}
		err := w.sink.PutAll(w.working, kept)
		refused = errors.Is(err, message.ErrRefused)
		return err
	}, func(recovered any) error { return guard.Recovered("delivery", recovered) })
	if refused && len(ms) == 1 {
		w.reject(ms[0], err)
		return nil
	}
	if err != nil {
		w.sinkFailed(err)
		return err
	}
	for _, m := range ms {
		m.Ack()
	}
	return nil
}

// withoutPurged returns the messages that are not known to have been purged. The sink may
// check again: see [Queue.PutAll].
func withoutPurged[T any](ms []message.Message[T]) []message.Message[T] {
	if !slices.ContainsFunc(ms, message.Message[T].IsPurged) {
		return ms
	}
	return slices.DeleteFunc(slices.Clone(ms), message.Message[T].IsPurged)
}

// reject gives up what the sink can never take: its source has it among the dead letters.
func (w *worker[IN, OUT]) reject(m message.Message[OUT], err error) {
	w.logger.Warn("delivery: the sink refuses a result for good, and its message is rejected", slog.Any("error", err), slog.String("id", m.Meta().ID))
	m.Reject(err)
}
