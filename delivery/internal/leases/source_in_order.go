package leases

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// WithOrder makes a source take the messages of a key one at a time, in order. A message
// that fails waits for its next visit in its place: see [InPlace].
func WithOrder(s store.InOrder) SourceOption {
	return func(set *sourceSettings) { set.inOrder = s }
}

// WithPutOff makes a source deliver only the taken messages that f returns. f settles the
// others in the store. Receive calls it.
func WithPutOff(f func(ctx context.Context, queue string, taken []store.Leased) []store.Leased) SourceOption {
	return func(set *sourceSettings) { set.putOff = f }
}

// InPlace is a [message.Delivery] of a source that keeps the order of keys.
type InPlace interface {
	message.Delivery

	// ReplaceBy sets a replacement: when the message is acknowledged, m takes its place
	// in the queue, due after m.Delay. ReplaceBy returns false if the source does not
	// keep the order of keys, or if the message is no longer in flight.
	ReplaceBy(m store.Message) bool
}

var _ InPlace = (*handle)(nil)

// ReplaceBy implements [InPlace].
func (h *handle) ReplaceBy(m store.Message) bool { return h.source.replaceBy(h, m) }

func (s *Source[T]) replaceBy(h *handle, m store.Message) bool {
	if s.inOrder == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handles[h.lease.Entry] != h || h.settlement != nil {
		return false
	}
	h.replacement = &m
	return true
}

// replace records messages that were acknowledged after ReplaceBy.
func (s *Source[T]) replace(ctx context.Context, hs []*handle) error {
	return s.write(hs, func(leases []store.Lease) error {
		rs := make([]store.Replacement, len(hs))
		for i, h := range hs {
			rs[i] = store.Replacement{Lease: leases[i], Message: *h.replacement}
			s.addDoubt(h, &rs[i].Message)
		}
		return s.inOrder.Replace(ctx, rs...)
	})
}

// rejectInstead rejects a message whose replacement the store refuses, for example
// because its history has become too large. The dead letter lacks the calls of this
// visit. If such a call is unsafe to repeat, the dead letter is in doubt (law X1).
func (s *Source[T]) rejectInstead(h *handle, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.settlement = &message.Settlement{Kind: message.Rejected, Err: cause, UnsafeToRepeat: h.replacement.Meta.UnsafeToRepeat}
	h.replacement = nil
}

// addDoubt adds to m the call that another worker has left in doubt, if any (law X1). m
// takes the place of the message of h, or becomes its dead letter. The outcome of this
// late visit does not end the doubt of the other worker. See join for that worker.
func (s *Source[T]) addDoubt(h *handle, m *store.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !h.othersDoubt.UnsafeToRepeat:
	case m.Meta.UnsafeToRepeat: // two calls are in doubt, and Meta has room for one (failed.noteRequest)
		m.Meta.Remembered = time.Time{}
	default:
		m.Meta.UnsafeToRepeat = true
		m.Meta.Request, m.Meta.Remembered = h.othersDoubt.Request, h.othersDoubt.Remembered
	}
}
