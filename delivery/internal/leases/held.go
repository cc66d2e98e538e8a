package leases

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// held is a message that was received and is not settled in the store. It is also the
// handle of its delivery. Source.mu guards all fields but isGone and isPurged; source and
// position are written once. Of message, only the provider changes.
type held struct {
	source     sourceOfHeld
	position   int64 // of the message, if the store is a [store.Inspector]
	lease      store.Lease
	until      time.Time // the lease lasts until then, by the clock of the source
	message    store.Message
	settlement *message.Settlement // nil: in flight
	written    bool                // settled in the store
	lost       bool                // its lease is, and was counted

	refusals int       // how often the store has refused to record the settlement
	due      time.Time // the settlement is not recorded again before

	isGone   atomic.Bool // the message is not in its queue, so its settlement is not recorded; written under mu
	isPurged atomic.Bool // it is gone because it was purged; written under mu
}

var _ message.Delivery = (*held)(nil)

// sourceOfHeld is a *Source, for its messages in flight.
type sourceOfHeld interface {
	ownerOf() any
	engineOf() store.Engine
	leaseOf(h *held) (l store.Lease, inFlight bool)
	noteGone(ctx context.Context, h *held)
	providerOf(h *held) string
	asReceived(h *held, encoded []byte) (payload, schema []byte, isSame bool)
	setProvider(ctx context.Context, h *held, provider string) (isKept bool, err error)
}

// Owner implements [message.Delivery].
func (h *held) Owner() any { return h.source.ownerOf() }

// Visit implements [message.Delivery].
func (h *held) Visit() (id string, visit, merges int) {
	m := &h.message.Meta
	return m.ID, m.Visit, m.Merges
}

// AsReceived implements [message.Delivery].
func (h *held) AsReceived(encoded []byte) (payload, schema []byte, isSame bool) {
	return h.source.asReceived(h, encoded)
}

// IsPurged implements [message.Delivery].
func (h *held) IsPurged() bool { return h.isPurged.Load() }

// Provider implements [message.Delivery].
func (h *held) Provider() string { return h.source.providerOf(h) }

// SetProvider implements [message.Delivery].
func (h *held) SetProvider(ctx context.Context, provider string) (isKept bool, err error) {
	return h.source.setProvider(ctx, h, provider)
}

func (s *Source[T]) ownerOf() any { return s.owner }

func (s *Source[T]) providerOf(h *held) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.message.Meta.Provider
}

func (s *Source[T]) asReceived(h *held, encoded []byte) (payload, schema []byte, isSame bool) {
	payload, schema = h.message.Payload, h.message.Schema
	return payload, schema, Same(s.decoder, s.codec, schema, payload, encoded)
}

func (s *Source[T]) setProvider(ctx context.Context, h *held, provider string) (isKept bool, err error) {
	s.mu.Lock()
	lease, isInFlight, now := h.lease, h.settlement == nil, h.message.Meta.Provider
	s.mu.Unlock()
	if !isInFlight {
		return false, nil
	}
	if provider == now {
		return true, nil
	}
	err = s.store.Amend(ctx, lease, store.Amendment{Provider: &provider})
	if err != nil {
		return true, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.message.Meta.Provider = provider
	return true, nil
}
