package leases

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// handle is the [message.Delivery] of a taken message, until the message is settled in
// the store.
type handle struct {
	// Written once, before the message is delivered.
	source   sourceOfHandle
	position int64         // in the queue, if the store is a [store.Inspector]
	message  store.Message // as received; the field provider has its present provider

	// Guarded by Source.mu. If the source takes the message again while the call runs,
	// join changes the lease.
	lease       store.Lease
	leaseVisit  int       // the visit that begins with the lease; the call may be of an earlier one
	leaseEnd    time.Time // by the source's clock
	isLeaseLost bool      // and counted in leasesLost

	// settlement is nil while the message is in flight. Guarded by Source.mu.
	settlement *message.Settlement
	// replacement takes the place of the message when its acknowledgement is recorded:
	// see InPlace. It is nil if the message leaves its queue. Guarded by Source.mu.
	replacement *store.Message
	refusals    int       // how often the store has refused the settlement; guarded by Source.mu
	nextTry     time.Time // not recorded before; guarded by Source.mu
	isForgotten bool      // settled in the store, and removed from the source; guarded by Source.mu

	// isVisitOver reports that the outcome of the call must not be stored: the message
	// was purged, or another worker has stored an outcome of the visit. With an order of
	// keys the message may still be in its queue. Written under Source.mu.
	isVisitOver atomic.Bool
	isPurged    atomic.Bool // isVisitOver because of a purge; written under Source.mu
	// hasNextLease reports that the visit is over, and that the source has taken the
	// message again for its next visit. settle releases that lease, so that the next
	// visit can begin. Guarded by Source.mu.
	hasNextLease bool

	// othersDoubt has the call that another worker has left in doubt before the source
	// took the message again, or is zero: see addDoubt. Guarded by Source.mu.
	othersDoubt message.Meta

	provider atomic.Pointer[string] // the present one; written under Source.mu
}

var _ message.Delivery = (*handle)(nil)

// sourceOfHandle is a [Source] with values of any type.
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
	wasTakenAgain := h.lease != lease.Lease
	if wasTakenAgain && h.Provider() != provider {
		return true, fmt.Errorf("message %q was taken again meanwhile, with the provider %q", h.message.Meta.ID, h.Provider())
	}
	h.provider.Store(&provider)
	return true, nil
}
