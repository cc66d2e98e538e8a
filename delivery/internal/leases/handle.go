package leases

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// handle is the [message.Delivery] of a taken message that is not settled in the store.
// source, position and message are written once. Source.mu guards the fields from lease
// to due.
type handle struct {
	source   sourceOfHandle
	position int64         // if the store is a [store.Inspector]
	message  store.Message // as received; see provider for its provider

	lease      store.Lease
	leaseVisit int                 // that began with the lease: after join, perhaps later than Visit
	until      time.Time           // end of the lease, by the source's clock
	settlement *message.Settlement // nil while the message is in flight
	// replacement takes the place of the message when its acknowledgement is recorded, or
	// is nil: see InPlace.
	replacement *store.Message
	forgotten   bool // removed from the source, since it is settled in the store
	// hasNextLease reports that the lease is for the next visit, although this visit is
	// over: with an order of keys, this source has taken the message again after another
	// worker had replaced it in its place. settle releases the lease.
	hasNextLease bool
	lost         bool // the lease was lost, and is counted
	// doubt has the call in doubt of another worker's visit, with which the message was
	// taken again, or is zero: see addDoubt.
	doubt message.Meta

	refusals int       // how often the store has refused the settlement
	due      time.Time // next try to record the settlement

	provider atomic.Pointer[string] // current provider; written under mu
	isPurged atomic.Bool            // the visit is over because the message was purged; written under mu
	// isVisitOver reports that the outcome of this delivery must not be stored: the
	// message was purged, or another worker has stored an outcome of the visit. With an
	// order of keys the message may still be in its queue. Written under mu.
	isVisitOver atomic.Bool
}

var _ message.Delivery = (*handle)(nil)

type sourceOfHandle interface {
	ownerOf() any
	engineOf() store.Engine
	leaseOf(h *handle) (l heldLease, isInFlight bool)
	noteVisitOver(ctx context.Context, h *handle, lease store.Lease)
	asReceived(h *handle, encoded []byte) (payload, schema []byte, isSame bool)
	setProvider(ctx context.Context, h *handle, provider string) (canKeep bool, err error)
	replaceBy(h *handle, m store.Message) bool
	addDoubt(h *handle, m *store.Message)
}

func (h *handle) Owner() any { return h.source.ownerOf() }

func (h *handle) Visit() (id string, visit, merges int) {
	m := &h.message.Meta
	return m.ID, m.Visit, m.Merges
}

func (h *handle) AsReceived(encoded []byte) (payload, schema []byte, isSame bool) {
	return h.source.asReceived(h, encoded)
}

func (h *handle) IsPurged() bool { return h.isPurged.Load() }

func (h *handle) Provider() string { return *h.provider.Load() }

func (h *handle) SetProvider(ctx context.Context, provider string) (canKeep bool, err error) {
	return h.source.setProvider(ctx, h, provider)
}

func (s *Source[T]) ownerOf() any { return s.owner }

func (s *Source[T]) asReceived(h *handle, encoded []byte) (payload, schema []byte, isSame bool) {
	payload, schema = h.message.Payload, h.message.Schema
	return payload, schema, Same(s.decoder, s.codec, schema, payload, encoded)
}

func (s *Source[T]) setProvider(ctx context.Context, h *handle, provider string) (canKeep bool, err error) {
	lease, isInFlight := s.leaseOf(h)
	if !isInFlight {
		return false, nil
	}
	if provider == h.Provider() {
		return true, nil
	}
	err = s.store.Amend(ctx, lease.Lease, store.Amendment{Provider: &provider})
	if err != nil {
		return true, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.lease != lease.Lease && h.Provider() != provider {
		return true, fmt.Errorf("message %q was taken again meanwhile, with the provider %q", h.message.Meta.ID, h.Provider())
	}
	h.provider.Store(&provider)
	return true, nil
}
