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
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const (
	maxFailedInARow = 3  // results that fail one after the other; then the sink counts as down
	maxTries        = 10 // counted tries of a refused result; then its message is rejected
	// aloneFor is how long the sink refuses a result while there are no other results.
	// After that each further try counts.
	aloneFor = time.Hour
)

// fill puts results into the sink until all are put. When the messages are to be
// released, it releases their results instead.
func (w *worker[IN, OUT]) fill(results <-chan message.Message[OUT]) {
	f := filling[OUT]{results: results}
	wait := firstWait
	for w.collect(&f) {
		f.round++
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
		// The sink is down or full, so all results wait. Meanwhile the operator blocks on
		// its results, and Run stops receiving.
		w.logger.Warn("delivery: the sink has failed, and its results are put again", slog.Any("error", err), slog.Int("messages", len(f.left)),
			slog.Duration("wait", wait))
		w.sleep(w.working, wait)
		wait = min(2*wait, lastWait)
	}
}

// filling has the results on their way to the sink. Owned by the goroutine of fill.
type filling[OUT any] struct {
	results <-chan message.Message[OUT] // nil after it was closed
	left    []message.Message[OUT]      // to be put next
	refused []*refusal[OUT]             // results that the sink has not taken while it took others
	takes   int                         // how often the sink has taken results: see noteTaken
	isDown  bool                        // put has failed since the last take; a failure of putAgain does not count
	round   int                         // number of the round, which puts the refused results that are due, and then left
	alone   failuresAlone

	// inPortions is how many of left, from its beginning, are put in portions of
	// defaultBatch, because the sink has not taken them together.
	inPortions int
}

// failuresAlone are the failures of results put alone since the sink last took a result.
// When the sink takes the next result, they show whether the sink was up when they
// failed:
//
//	all failures were in one round    the sink was up, and has refused these results
//	they were in several rounds       there may have been an outage
//
// For example, A and B are put alone in one round: A fails, and B is taken. So the sink
// has refused A, and errWhileUp keeps its error. noteTaken does this for the results in
// refused, and putEach for the results that it puts.
type failuresAlone struct {
	round           int // of the first failure; 0 without failures
	inSeveralRounds bool
}

// showRefusals reports whether the sink was up when the results failed, if it takes a
// result now.
func (a failuresAlone) showRefusals() bool { return a.round != 0 && !a.inSeveralRounds }

// refusal is a result that the sink has not taken while it took others.
type refusal[OUT any] struct {
	message    message.Message[OUT]
	tries      int           // counted tries: see noteFailedTry
	wait       time.Duration // between the last try and the next
	due        time.Time     // of the next try
	aloneSince time.Time     // since then only refused results were tried, and all have failed

	// Of the last try:
	takes int    // filling.takes
	round int    // filling.round
	err   string // from [counting.Alike], which makes similar errors equal

	errWhileUp string // the error (err) of a try while the sink was up, or "": see failuresAlone
}

// noteFailedTry notes a try of r that has failed. It counts only tries while the sink was
// up, since an outage must not reject results (law D5). The sink was up in each of these
// cases:
//
//   - It has taken other results since the previous try.
//   - Its error is like the error of a try while it was up (isRefusedAgain). Without this
//     case, a refused result would never be rejected if no other results follow (law W2).
//   - It has refused the result for an hour while there were no other results. This may
//     be an outage, which then looks like a refusal.
func (r *refusal[OUT]) noteFailedTry(f *filling[OUT], err error, now time.Time) {
	hasTakenOthers := f.takes > r.takes
	if hasTakenOthers || f.isDown {
		r.aloneSince = now
	}
	r.err = counting.Alike(guard.Text(err))
	isRefusedAgain := !f.isDown && r.errWhileUp != "" && r.err == r.errWhileUp
	isAloneForLong := now.Sub(r.aloneSince) >= aloneFor
	if hasTakenOthers || isRefusedAgain || isAloneForLong {
		r.tries++
	}
	r.takes, r.round = f.takes, f.round
	r.wait = min(2*r.wait, lastWait)
	r.due = now.Add(r.wait)
}

// collect waits until there is something to put or to release, and adds the results that
// are ready. It returns false if all results have come and were put.
func (w *worker[IN, OUT]) collect(f *filling[OUT]) bool {
	if len(f.left) == 0 {
		if f.results == nil && len(f.refused) == 0 {
			return false
		}
		w.awaitResult(f)
	}
	w.addReady(f)
	return true
}

// awaitResult waits for a new result, or until a refused result is due or is to be
// released. While w.puts results are refused, it does not receive new ones.
func (w *worker[IN, OUT]) awaitResult(f *filling[OUT]) {
	// The case of a nil channel is never chosen.
	results := f.results
	var due <-chan time.Time
	var released <-chan struct{}
	if len(f.refused) > 0 {
		timer := w.clock.Timer(max(0, f.next().Sub(w.clock.Now())))
		defer timer.Stop()
		due = timer.C
		released = w.working.Done()
		if len(f.refused) >= w.puts {
			results = nil
		}
	}
	select {
	case m, ok := <-results:
		f.add(m, ok)
	case <-due:
	case <-released:
	}
}

// addReady adds results without waiting, until left and refused have w.puts results.
func (w *worker[IN, OUT]) addReady(f *filling[OUT]) {
	for f.results != nil && len(f.left)+len(f.refused) < w.puts {
		select {
		case m, ok := <-f.results:
			f.add(m, ok)
		default:
			return
		}
	}
}

// add adds a received result. isOpen is false if results was closed.
func (f *filling[OUT]) add(m message.Message[OUT], isOpen bool) {
	if isOpen {
		f.left = append(f.left, withID(m))
	} else {
		f.results = nil
	}
}

// withID returns a result with an id. A missing id becomes random: some sources other
// than queues do not set ids. By the id a sink recognises a result that it has taken
// already, in a call that seemed to fail.
func withID[OUT any](m message.Message[OUT]) message.Message[OUT] {
	if m.Meta().ID != "" { // Meta is called twice: a shared variable would be allocated for each message
		return m
	}
	meta := m.Meta()
	meta.ID = rand.Text()
	if !m.Pending() {
		return message.New(m.Value, &meta, nil)
	}
	return message.New(m.Value, &meta, m.Settle)
}

// noteTaken notes that the sink has taken results, so it is up. It is not called for a
// result that was rejected: a queue rejects a value that its codec cannot encode even if
// its engine is down.
func (f *filling[OUT]) noteTaken() {
	for _, r := range f.refused {
		if f.alone.showRefusals() && r.round == f.alone.round {
			r.errWhileUp = r.err
		}
	}
	f.takes++
	f.isDown = false
	f.alone = failuresAlone{}
}

// noteFailedAlone notes that a result that was put alone has failed.
func (f *filling[OUT]) noteFailedAlone() {
	if f.alone.round == 0 {
		f.alone.round = f.round
	} else if f.alone.round != f.round {
		f.alone.inSeveralRounds = true
	}
}

func (f *filling[OUT]) next() time.Time {
	return slices.MinFunc(f.refused, func(a, b *refusal[OUT]) int { return a.due.Compare(b.due) }).due
}

// putAgain puts the refused results that are due, one by one. After maxTries counted
// tries it rejects the message of a result (law W2).
func (w *worker[IN, OUT]) putAgain(f *filling[OUT]) {
	now := w.clock.Now()
	rest := f.refused[:0]
	for _, r := range f.refused {
		if !r.due.After(now) && w.working.Err() == nil {
			hasTaken, err := w.putSome([]message.Message[OUT]{r.message})
			if hasTaken {
				f.noteTaken()
			}
			if !r.message.Pending() {
				continue
			}
			if errors.Is(err, store.ErrFull) {
				r.due = w.clock.Now().Add(lastWait) // the sink lacks room, and has not refused it
				r.aloneSince = w.clock.Now()
				rest = append(rest, r)
				continue
			}
			f.noteFailedAlone()
			r.noteFailedTry(f, err, w.clock.Now())
			if r.tries == maxTries {
				w.reject(r.message, fmt.Errorf("delivery: %w: the sink has not taken it %d times: %w", message.ErrRefused, r.tries, err))
				continue
			}
		}
		rest = append(rest, r)
	}
	clear(f.refused[len(rest):])
	f.refused = rest
}

// put makes one step to put the results of left. It puts all of them together. If that
// fails, the next steps put portions of them. If a portion fails, its results are put one
// by one. So a refused result does not delay others (law D4), and does not cost a put for
// each of them.
//
// put returns nil if the next step may follow at once. Then the results that the sink has
// taken were removed from left, and results that it has refused, while it took others,
// were moved to refused. put returns an error if the sink is down or full, or if the
// messages are to be released. Then the results that the sink has not taken stay in left.
func (w *worker[IN, OUT]) put(f *filling[OUT]) error {
	if len(f.left) == 0 {
		return nil
	}
	if w.working.Err() != nil {
		return context.Cause(w.working)
	}
	n := len(f.left)
	if f.inPortions > 0 {
		n = min(n, f.inPortions, defaultBatch)
	}
	some, rest := f.left[:n], f.left[n:]
	hasTaken, err := w.putSome(some)
	if hasTaken {
		f.noteTaken()
	}
	if err == nil {
		f.left = rest
		f.inPortions = max(0, f.inPortions-n)
		return nil
	}
	unsettled := slices.DeleteFunc(some, func(m message.Message[OUT]) bool { return !m.Pending() })
	f.left = slices.Concat(unsettled, rest)
	switch {
	case len(unsettled) > defaultBatch:
		f.inPortions = len(unsettled)
		return nil
	case len(unsettled) == 1 && !hasTaken: // it was put alone already
		f.noteFailedAlone()
		f.isDown = true
		return err
	}
	return w.putEach(f, unsettled, rest, hasTaken, err)
}

// putEach puts the results of some one by one, after a put of them together has failed
// with err. hasTaken reports whether the sink has taken a result in that put. rest are
// the other results of left.
func (w *worker[IN, OUT]) putEach(f *filling[OUT], some, rest []message.Message[OUT], hasTaken bool, err error) error {
	var failed []*refusal[OUT]
	unsure := 0 // index in failed of the first result that has failed since the last take
	for i := range some {
		isDown := !hasTaken && len(failed) == maxFailedInARow
		if isDown || w.working.Err() != nil {
			f.left = slices.Concat(some[i:], rest, messagesOf(failed)) // others come first the next time
			f.isDown = true
			return err
		}
		isTaken, failure := w.putSome(some[i : i+1])
		switch {
		case isTaken:
			hasTaken = true
			f.noteTaken()
			for _, r := range failed[unsure:] {
				r.noteFirst()
			}
			unsure = len(failed)
		case failure == nil || !some[i].Pending(): // its message was purged or rejected
		case errors.Is(failure, store.ErrFull): // all results wait for room
			f.left = slices.Concat(some[i:], rest, messagesOf(failed))
			return failure
		default:
			f.noteFailedAlone()
			failed = append(failed, &refusal[OUT]{message: some[i], err: counting.Alike(guard.Text(failure)), round: f.round})
			err = failure
		}
	}
	if !hasTaken && len(failed) > 0 {
		f.left = slices.Concat(rest, messagesOf(failed))
		f.isDown = true
		return err
	}
	f.left = rest
	f.inPortions = max(0, f.inPortions-len(some))
	if len(failed) > 0 {
		w.logger.Warn("delivery: the sink refuses some results, which are put again", slog.Any("error", err),
			slog.Int("messages", len(failed)), slog.String("first", failed[0].message.Meta().ID))
		f.refuse(failed, w.clock.Now())
	}
	return nil
}

// noteFirst counts the first try of r: the sink was up, since it took another result
// later in the same round.
func (r *refusal[OUT]) noteFirst() {
	r.tries = 1
	r.errWhileUp = r.err
}

// refuse adds failed results to refused, since the sink has taken others.
func (f *filling[OUT]) refuse(failed []*refusal[OUT], now time.Time) {
	for _, r := range failed {
		r.takes = f.takes
		r.aloneSince = now
		r.wait = firstWait
		r.due = now.Add(firstWait)
	}
	f.refused = append(f.refused, failed...)
}

func messagesOf[OUT any](failed []*refusal[OUT]) (ms []message.Message[OUT]) {
	for _, r := range failed {
		ms = append(ms, r.message)
	}
	return ms
}

// putSome puts results into the sink, and then acknowledges their messages (law D1).
// hasTaken reports that the sink has taken a result, even if it failed afterwards.
//
// If the sink can never take a result that is put alone, putSome rejects its message (law
// W2), and returns nil. It does not put the results of purged messages.
func (w *worker[IN, OUT]) putSome(ms []message.Message[OUT]) (hasTaken bool, err error) {
	kept := withoutPurged(ms)
	isRefused := false
	err = guard.Call(func() error {
		if len(kept) == 0 {
			return nil
		}
		err := w.sink.PutAll(w.working, kept)
		isRefused = errors.Is(err, message.ErrRefused)
		return err
	}, func(recovered any) error { return guard.Recovered("delivery", recovered) })
	if isRefused && len(ms) == 1 {
		w.reject(ms[0], err)
		return false, nil
	}
	if err != nil {
		w.sinkFailed(err)
		return slices.ContainsFunc(kept, isTaken), err
	}
	for _, m := range ms {
		m.Ack()
	}
	return slices.ContainsFunc(kept, isTaken), nil
}

func isTaken[OUT any](m message.Message[OUT]) bool { return !m.Pending() && !m.IsRejected() }

// withoutPurged returns the messages that are not known to have been purged. The sink may
// check again: see [Queue.PutAll].
func withoutPurged[T any](ms []message.Message[T]) []message.Message[T] {
	if !slices.ContainsFunc(ms, message.Message[T].IsPurged) {
		return ms
	}
	return slices.DeleteFunc(slices.Clone(ms), message.Message[T].IsPurged)
}

// reject rejects the message of a result that the sink can never take, so its source
// moves the message to the dead letters.
func (w *worker[IN, OUT]) reject(m message.Message[OUT], err error) {
	w.logger.Warn("delivery: the sink refuses a result for good, and its message is rejected", slog.Any("error", err), slog.String("id", m.Meta().ID))
	m.Reject(err)
}
