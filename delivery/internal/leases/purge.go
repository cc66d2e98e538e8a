package leases

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// HandOver puts messages into a queue. ms[i] was made from the message in flight whose
// delivery is from[i]. from[i] is nil if there is no such message.
//
// isOver[i] is true if ms[i] was not put because the visit of that message is over: the
// message was purged (law W5), or its lease had ended, and another worker has stored an
// outcome of the visit. The caller settles the message as if ms[i] had been put. But if
// the source has taken the message again meanwhile, its visit is not over: see join.
//
// If the message was received from the same engine, and that is a [store.Inspector], the
// engine checks in the transaction that puts. Otherwise HandOver uses what the source has
// found before, so a purge may come in between.
func HandOver(ctx context.Context, engine store.Engine, queue string, ms []store.Message, from []message.Delivery) (isOver []bool, err error) {
	isOver = make([]bool, len(ms))
	moves := make([]store.Move, 0, len(ms)) // of messages whose visit is not over
	at := make([]int, 0, len(ms))           // index in ms of each move
	isChecked := false
	for i := range ms {
		h, isHandle := from[i].(*handle)
		if isHandle && h.isVisitOver.Load() {
			isOver[i] = true
			continue
		}
		move := store.Move{Queue: queue, Message: ms[i]}
		if isHandle {
			h.prepare(&move, engine)
		}
		isChecked = isChecked || move.Lease != store.Lease{}
		moves = append(moves, move)
		at = append(at, i)
	}
	areAllOver := len(moves) == 0 && len(ms) > 0
	if areAllOver {
		return isOver, nil
	}
	if !isChecked {
		return isOver, putUnchecked(ctx, engine, queue, moves, isOver)
	}
	inspector := engine.(store.Inspector) // prepare has checked the type
	err = inspector.HandOver(ctx, moves...)
	lost, isLost := errors.AsType[*store.LeaseError](err)
	if !isLost {
		return isOver, err
	}
	wasLost := make(map[store.Lease]bool, len(lost.Lost))
	for _, l := range lost.Lost {
		wasLost[l] = true
	}
	for n := range moves {
		h, isHandle := from[at[n]].(*handle)
		if isHandle && wasLost[moves[n].Lease] {
			isOver[at[n]] = true
			h.source.noteVisitOver(ctx, h, moves[n].Lease)
		}
	}
	return isOver, nil
}

// prepare completes a move of a message that was made from the message of h: it adds a
// doubt that another worker has left, and the lease with which the engine checks that the
// visit of h is not over.
func (h *handle) prepare(move *store.Move, engine store.Engine) {
	isDeadLetter := move.Message.Cause != ""
	if isDeadLetter {
		h.source.addDoubt(h, &move.Message)
		move.Message.Cause = settle.CauseOf(&move.Message.Meta, move.Message.Cause)
	}
	_, isInspector := engine.(store.Inspector)
	canCheck := isInspector && storearg.IsSame(h.source.engineOf(), engine)
	if !canCheck {
		return
	}
	lease, isInFlight := h.source.leaseOf(h)
	if !isInFlight {
		// The program has acknowledged the message before it puts the result. So the
		// message may be missing although it was not purged, and a check would not show
		// anything: the result is put unchecked.
		return
	}
	move.Lease = lease.Lease
	move.Visit = lease.visit
}

// putUnchecked puts the messages of moves without checking their originals. The Errs of a
// *[store.PutError] are in the order of HandOver's ms.
func putUnchecked(ctx context.Context, engine store.Engine, queue string, moves []store.Move, isOver []bool) error {
	kept := make([]store.Message, len(moves))
	for i := range moves {
		kept[i] = moves[i].Message
	}
	return alignErrs(engine.Put(ctx, queue, kept...), isOver)
}

// alignErrs adds a nil error to a [store.PutError] for each message whose visit is over, so
// that its Errs are in the order of HandOver's ms.
func alignErrs(err error, isOver []bool) error {
	of, ok := errors.AsType[*store.PutError](err)
	if !ok || len(of.Errs) == len(isOver) {
		return err
	}
	all := &store.PutError{Errs: make([]error, len(isOver))}
	next := 0 // in of.Errs
	for i := range isOver {
		if !isOver[i] {
			all.Errs[i] = of.Errs[next]
			next++
		}
	}
	return all
}

var _ settle.PurgeFinder = (*Source[any])(nil)

// OnPurge implements [settle.PurgeFinder].
func (s *Source[T]) OnPurge(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onPurge = f
}

// LookForPurged implements [settle.PurgeFinder]. It extends the leases: the store refuses
// the leases of purged messages.
func (s *Source[T]) LookForPurged(ctx context.Context, key string) {
	s.mu.Lock()
	s.purgeSearches++ // before the search, so that a running take searches again
	s.mu.Unlock()
	s.lookInFlight(ctx, key)
}

func (s *Source[T]) lookInFlight(ctx context.Context, key string) {
	s.extendSome(ctx, func(h *handle) bool { return key == "" || h.message.Meta.Key == key })
}

func (s *Source[T]) purgeSearchesBegun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.purgeSearches
}

// noteVisitOver notes that the visit of h is over. The store has found this for a lease
// of h. There are three reasons:
//
//	h has a newer lease        another worker has replaced the message (see hasNextLease)
//	the lease has not ended    the message was purged: another worker cannot have taken it
//	otherwise                  another worker has settled the message, or it was purged
func (s *Source[T]) noteVisitOver(ctx context.Context, h *handle, lease store.Lease) {
	s.mu.Lock()
	hasNewerLease := h.lease != lease
	isPurged := !hasNewerLease && s.clock.Now().Before(h.leaseEnd)
	isNew := h.isVisitOver.CompareAndSwap(false, true)
	switch {
	case !isNew:
	case hasNewerLease:
		h.hasNextLease = true // join has counted the lost lease
	case isPurged:
		h.isPurged.Store(true)
	default:
		s.lose(h)
	}
	onPurge := s.onPurge
	s.mu.Unlock()
	if !isNew {
		return
	}
	level, text := slog.LevelWarn, "weir: a message whose lease had ended is gone: another worker has settled it, or it was purged; its outcome here is not stored"
	switch {
	case hasNewerLease:
		text = "weir: the lease of a message had ended, and another worker has stored the failure of its visit; the outcome here is not stored"
	case isPurged:
		level, text = slog.LevelInfo, "weir: a message in flight was purged; its outcome is not stored"
	}
	s.logger.LogAttrs(ctx, level, text, slog.String("queue", s.queue), slog.String("id", h.message.Meta.ID))
	if isPurged && onPurge != nil {
		onPurge()
	}
}

// findPurged returns the messages of lost that were purged. A message was purged if it is
// no longer in the queue although its lease has not ended: another worker cannot have
// settled it.
func (s *Source[T]) findPurged(ctx context.Context, lost []*handle) (purged []*handle) {
	inspector, ok := s.store.(store.Inspector)
	if !ok {
		return nil
	}
	for _, h := range lost {
		s.mu.Lock()
		hasEnded := !s.clock.Now().Before(h.leaseEnd)
		s.mu.Unlock()
		if hasEnded {
			continue
		}
		found, err := inspector.List(ctx, s.queue, store.Filter{}, store.Page{After: h.position - 1, Until: h.position, Max: 1})
		if err != nil {
			// The caller counts the lease as lost, even if the message was purged. While
			// the message is in flight, the next Extend repeats the search.
			return purged
		}
		if len(found) == 0 {
			purged = append(purged, h)
		}
	}
	return purged
}

func (s *Source[T]) engineOf() store.Engine { return s.store }

// heldLease is a lease with the visit that begins with it.
type heldLease struct {
	store.Lease
	visit int
}

// leaseOf returns the lease of a message, and whether the message is in flight.
func (s *Source[T]) leaseOf(h *handle) (l heldLease, isInFlight bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return heldLease{h.lease, h.leaseVisit}, h.settlement == nil
}
