package leases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// extend extends the leases of all messages in flight, and of settled messages that are
// not recorded yet.
func (s *Source[T]) extend(ctx context.Context) {
	s.extendSome(ctx, func(*handle) bool { return true })
}

// extendSome is extend for the messages for which choose returns true. choose is called
// with mu held. Several goroutines may extend leases at the same time.
func (s *Source[T]) extendSome(ctx context.Context, choose func(*handle) bool) {
	asked := s.clock.Now()
	s.mu.Lock()
	extended := make(map[store.Lease]*handle, len(s.handles))
	leases := make([]store.Lease, 0, len(s.handles))
	for _, h := range s.handles {
		hasLease := !h.isVisitOver.Load() || h.hasNextLease
		if hasLease && choose(h) {
			extended[h.lease] = h
			leases = append(leases, h.lease)
		}
	}
	s.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	err := s.store.Extend(ctx, s.lease, leases...)
	refused, isLost := errors.AsType[*store.LeaseError](err)
	if err != nil && !isLost {
		if ctx.Err() == nil {
			s.logger.Warn("weir: leases could not be extended", "queue", s.queue, "error", err)
		}
		return
	}
	lost := map[store.Lease]*handle{}
	if isLost {
		for _, l := range refused.Lost {
			h := extended[l]
			if h != nil {
				lost[l] = h
			}
			delete(extended, l)
		}
	}
	s.mu.Lock()
	for l, h := range extended {
		if h.lease == l {
			h.leaseEnd = asked.Add(s.lease)
		}
	}
	s.mu.Unlock()
	if isLost {
		s.noteLost(ctx, lost, err)
	}
}

// noteLost notes messages whose leases are lost. The visit of a purged message is over.
// The others stay in flight: if the source takes them again, join gives them a new lease.
//
// noteLost leaves out two kinds of messages. The recorder may have settled a message in
// the store since extendSome asked. And the source may have taken a message again, so
// that it has a newer lease.
func (s *Source[T]) noteLost(ctx context.Context, lost map[store.Lease]*handle, err error) {
	purged := s.findPurged(ctx, slices.Collect(maps.Values(lost)))
	s.mu.Lock()
	for l, h := range lost {
		if h.lease != l || h.settlement != nil || h.isVisitOver.Load() {
			delete(lost, l)
		}
	}
	s.mu.Unlock()
	others := 0
	for l, h := range lost {
		if slices.Contains(purged, h) {
			s.noteVisitOver(ctx, h, l)
			continue
		}
		others++
		s.mu.Lock()
		s.lose(h)
		s.mu.Unlock()
	}
	if others > 0 && ctx.Err() == nil {
		s.logger.Warn("weir: leases could not be extended", "queue", s.queue, "error", err)
	}
}

// lose counts a lost lease, once. Called with mu held.
func (s *Source[T]) lose(h *handle) {
	if !h.isLeaseLost {
		h.isLeaseLost = true
		s.leasesLost++
	}
}

var (
	_ settle.LeaseCounter   = (*Source[any])(nil)
	_ settle.RefusalCounter = (*Source[any])(nil)
)

// LeasesLost implements [settle.LeaseCounter]. It returns how many leases have ended
// before their messages were settled, so that a source took these messages again: another
// source, or this one.
func (s *Source[T]) LeasesLost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leasesLost
}

// A settlement that the store refuses is tried maxRefusals times, with waits of 100 ms,
// 200 ms and so on, 3 s in all.
const (
	maxRefusals      = 6
	firstRefusalWait = 100 * time.Millisecond
)

// SettlementsRefused implements [settle.RefusalCounter].
func (s *Source[T]) SettlementsRefused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settlementsRefused
}

// record writes some settlements, at most maxRecorded, so that the recorder can extend
// leases between two calls. It returns the time until its next call, as
// [settle.Hooks].Record does. When the source closes, settlements that wait for another
// try are tried at once.
func (s *Source[T]) record(ctx context.Context, isClosing bool) (next time.Duration, err error) {
	due := s.collectDue(isClosing)
	if s.inOrder != nil && len(due.done)+len(due.rejected) > 0 {
		defer settle.Wake(s.wake) // the next messages of their keys may be due
	}
	for _, hs := range [][]*handle{due.done, due.replaced, due.released} {
		err := s.recordTogether(ctx, hs, isClosing)
		if err != nil {
			return 0, err
		}
	}
	if due.hasOtherDelays {
		// The next call comes at once, and releases the other messages. Dead letters are
		// recorded after that: if they cannot be stored, they must not delay releases
		// (law D3).
		return 0, nil
	}
	err = s.recordTogether(ctx, due.rejected, isClosing)
	if err != nil {
		return 0, err
	}
	return s.nextRecord(isClosing), nil
}

// dueSettlements are the settled messages that record writes now, by what the store does
// with them.
type dueSettlements struct {
	done     []*handle
	replaced []*handle // in their places: see InPlace
	released []*handle // all with the same delay, for one call of Release
	rejected []*handle // moved to the dead letters

	hasOtherDelays bool // further messages are to be released, with other delays
}

func (s *Source[T]) collectDue(isClosing bool) (due dueSettlements) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	n := 0
	for _, h := range s.settled {
		if n == maxRecorded {
			break
		}
		if !isClosing && h.nextTry.After(now) {
			continue
		}
		n++
		if h.replacesAgain() {
			// The failure that the other worker has stored stays, with its history (law
			// D6). Release lets the next visit begin.
			h.settlement = &message.Settlement{Kind: message.Released}
			h.replacement = nil
		}
		due.add(h)
	}
	return due
}

// replacesAgain reports whether h would replace its message a second time for the same
// visit, since another worker has replaced it already: see join. It returns false if this
// visit has left a call in doubt, since the doubt must be stored (law X1). Called with mu
// held.
func (h *handle) replacesAgain() bool {
	wasReplaced := h.leaseVisit > h.message.Meta.Visit
	if h.replacement == nil || !wasReplaced {
		return false
	}
	leavesDoubt := h.replacement.Meta.UnsafeToRepeat && !h.message.Meta.UnsafeToRepeat
	return !leavesDoubt
}

// add adds a message by its settlement. But a message that is to be released with another
// delay than the messages before it waits for the next call of record.
func (d *dueSettlements) add(h *handle) {
	switch h.settlement.Kind {
	case message.Done, message.HandedOver:
		if h.replacement != nil {
			d.replaced = append(d.replaced, h)
		} else {
			d.done = append(d.done, h)
		}
	case message.Released, message.Failed:
		if len(d.released) > 0 && d.released[0].settlement.Delay != h.settlement.Delay {
			d.hasOtherDelays = true
			return
		}
		d.released = append(d.released, h)
	case message.Rejected:
		d.rejected = append(d.rejected, h)
	}
}

func (s *Source[T]) nextRecord(isClosing bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.settled) == 0 {
		return settle.Idle
	}
	first := slices.MinFunc(s.settled, func(a, b *handle) int { return a.nextTry.Compare(b.nextTry) })
	if isClosing {
		return 0
	}
	return max(0, first.nextTry.Sub(s.clock.Now()))
}

// recordTogether records messages that were settled in the same way. If the store refuses
// one of them, the others are recorded without it (law D4): recordTogether halves the
// messages until the refused message is alone. It returns an error if the store fails,
// and nil if the store refuses messages.
func (s *Source[T]) recordTogether(ctx context.Context, hs []*handle, isClosing bool) error {
	if len(hs) == 0 {
		return nil
	}
	err := s.recordSame(ctx, hs)
	switch {
	case !errors.Is(err, message.ErrRefused):
		return err
	case len(hs) == 1:
		return s.noteRefusal(ctx, hs[0], err, isClosing)
	}
	half := len(hs) / 2
	err = s.recordTogether(ctx, hs[:half], isClosing)
	if err != nil {
		return err
	}
	return s.recordTogether(ctx, hs[half:], isClosing)
}

func (s *Source[T]) recordSame(ctx context.Context, hs []*handle) error {
	v := hs[0].settlement
	switch v.Kind {
	case message.Done, message.HandedOver:
		if hs[0].replacement != nil {
			return s.replace(ctx, hs)
		}
		return s.write(hs, func(leases []store.Lease) error { return s.store.Done(ctx, leases...) })
	case message.Released, message.Failed:
		s.releasing <- struct{}{}
		err := s.write(hs, func(leases []store.Lease) error { return s.store.Release(ctx, min(v.Delay, longestNack), leases...) })
		<-s.releasing
		if err == nil {
			settle.Wake(s.wake)
		}
		return err
	default:
		return s.write(hs, func(leases []store.Lease) error { return s.moveToDead(ctx, hs, leases) })
	}
}

// noteRefusal notes that the store has refused the settlement of h. record tries it
// again, together with the settlements that are due by then. After maxRefusals tries, or
// at once if the source closes, the message is set aside. But a message whose replacement
// is refused is rejected.
func (s *Source[T]) noteRefusal(ctx context.Context, h *handle, cause error, isClosing bool) error {
	if h.replacement != nil {
		s.rejectInstead(h, cause)
		return nil
	}
	s.mu.Lock()
	s.settlementsRefused++
	h.refusals++
	wait := firstRefusalWait << (h.refusals - 1)
	h.nextTry = s.clock.Now().Add(wait)
	isLastTry := isClosing || h.refusals >= maxRefusals
	s.mu.Unlock()
	if isLastTry {
		return s.setAside(ctx, h, cause)
	}
	s.logger.Warn("weir: the store refuses to record how a message was settled, and is asked again", "queue", s.queue,
		"id", h.message.Meta.ID, "wait", wait, "error", cause)
	return nil
}

// setAside leaves a message in its queue for good, since it cannot be settled: it is not
// redelivered. If the store refuses even that, it is redelivered when its lease ends.
func (s *Source[T]) setAside(ctx context.Context, h *handle, cause error) error {
	fate := "it stays in its queue and is not delivered again"
	hs := []*handle{h}
	var releaseErr error // write does not return a lost lease, so it is kept here
	err := s.write(hs, func(leases []store.Lease) error {
		releaseErr = s.store.Release(ctx, forGood, leases...)
		return releaseErr
	})
	switch {
	case storearg.IsLost(releaseErr):
		return nil
	case errors.Is(err, message.ErrRefused):
		fate = "it is delivered again when its lease ends"
		s.mu.Lock()
		s.forget(hs)
		s.mu.Unlock()
	case err != nil:
		return err
	}
	s.logger.Error("weir: a message cannot be settled, because the store refuses it; "+fate, "queue", s.queue,
		"id", h.message.Meta.ID, "entry", h.lease.Entry, "settled", h.settlement.Kind, "error", cause)
	return nil
}

// write settles messages in the store by f, and forgets them. It also forgets messages
// whose lease was lost, since another source settles them. But if this source has taken
// such a message again, the message is settled with its newer lease.
func (s *Source[T]) write(hs []*handle, f func([]store.Lease) error) error {
	if len(hs) == 0 {
		return nil
	}
	leases := make([]store.Lease, len(hs))
	s.mu.Lock()
	for i, h := range hs {
		leases[i] = h.lease
	}
	s.mu.Unlock()
	err := f(leases)
	lost, isLost := errors.AsType[*store.LeaseError](err)
	if err != nil && !isLost {
		return err
	}
	var ended, withoutLease []*handle
	s.mu.Lock()
	for i, h := range hs {
		wasLost := isLost && slices.Contains(lost.Lost, leases[i])
		if wasLost && h.lease != leases[i] {
			continue // stays in settled, and is recorded with its newer lease
		}
		if wasLost && !h.isVisitOver.Load() { // otherwise it was noted before
			withoutLease = append(withoutLease, h)
		}
		ended = append(ended, h)
	}
	s.forget(ended)
	s.mu.Unlock()
	s.noteSettledAfterLoss(withoutLease)
	return nil
}

// forget removes settled messages. They count for the limits of their keys until now,
// since the store counts their leases. Called with mu held.
func (s *Source[T]) forget(hs []*handle) {
	for _, h := range hs {
		h.isForgotten = true
		delete(s.handles, h.lease.Entry)
		s.leave(h.message.Meta.Key)
	}
	s.settled = slices.DeleteFunc(s.settled, func(h *handle) bool { return h.isForgotten })
}

func (s *Source[T]) noteSettledAfterLoss(hs []*handle) {
	if len(hs) == 0 {
		return
	}
	purged := s.findPurged(s.recorder.Calls, hs)
	for _, h := range purged {
		s.noteVisitOver(s.recorder.Calls, h, h.lease)
	}
	s.mu.Lock()
	for _, h := range hs {
		if !h.isVisitOver.Load() {
			s.lose(h)
		}
	}
	s.mu.Unlock()
	others := len(hs) - len(purged)
	if others > 0 {
		s.logger.Warn("weir: messages were settled after their leases were lost; they may be delivered again", "queue", s.queue, "messages", others)
	}
}

func (s *Source[T]) moveToDead(ctx context.Context, hs []*handle, leases []store.Lease) error {
	moves := make([]store.Move, len(hs))
	for i, h := range hs {
		m := h.message
		m.Meta.Provider = h.Provider()
		m.Delay = 0
		s.addDoubt(h, &m)
		m.Cause = settle.RecordRejection(&m.Meta, *h.settlement, s.clock.Now())
		moves[i] = store.Move{Lease: leases[i], Queue: s.dead, Message: m}
	}
	if len(moves) == 1 {
		return s.moveAloneToDead(ctx, moves[0])
	}
	return moveAll(ctx, s.store, moves...)
}

// moveAloneToDead moves a message to the dead letters. The history of its failure may
// make it too large; if only a pointer fits, the message stays in its queue.
func (s *Source[T]) moveAloneToDead(ctx context.Context, to store.Move) error {
	where := fmt.Sprintf("queue %q, entry %s", s.queue, to.Lease.Entry)
	isWhole, err := settle.Bury(to.Message.Meta, where, func(meta message.Meta, withBytes bool) error {
		m := to.Message
		m.Meta = meta
		if withBytes {
			return moveAll(ctx, s.store, store.Move{Lease: to.Lease, Queue: to.Queue, Message: m})
		}
		m.Payload, m.Schema = nil, nil
		return s.putPointer(ctx, store.Move{Lease: to.Lease, Queue: to.Queue, Message: m})
	})
	if err != nil || isWhole {
		return err
	}
	return s.store.Release(ctx, forGood, to.Lease)
}

// putPointer puts a dead letter that points to its message, unless the message was
// purged.
func (s *Source[T]) putPointer(ctx context.Context, to store.Move) error {
	if inspector, ok := s.store.(store.Inspector); ok {
		return inspector.HandOver(ctx, to)
	}
	return s.store.Put(ctx, to.Queue, to.Message)
}

// moveAll settles leases, and puts a message into another queue for each lease. It does
// so in one transaction if the store is a [store.Inspector]. In other stores the messages
// are put first, so that a crash in between does not lose messages (law D1): it doubles
// them. There messages whose lease was lost are put as well.
func moveAll(ctx context.Context, s store.Store, moves ...store.Move) error {
	if i, ok := s.(store.Inspector); ok {
		return i.Move(ctx, moves...)
	}
	leases := make([]store.Lease, len(moves))
	for i, m := range moves {
		if err := s.Put(ctx, m.Queue, m.Message); err != nil {
			return err
		}
		leases[i] = m.Lease
	}
	return s.Done(ctx, leases...)
}
