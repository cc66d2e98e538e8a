package message_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
)

// purged is the delivery of a message that was purged, or was not.
type purged bool

func (p purged) Owner() any                                            { return nil }
func (p purged) Visit() (id string, visit, merges int)                 { return "", 0, 0 }
func (p purged) AsReceived([]byte) (payload, schema []byte, same bool) { return nil, nil, false }
func (p purged) IsPurged() bool                                        { return bool(p) }
func (p purged) Provider() string                                      { return "" }
func (p purged) SetProvider(context.Context, string) (bool, error)     { return false, nil }

// A delivery travels with its message: to other values, to parts, and in the context of a
// call.
func TestAttach_DeliveryOf(t *testing.T) {
	m, _ := settled(1)
	require.Nil(t, message.DeliveryOf(m))
	m = message.Attach(m, purged(true))
	require.Equal(t, purged(true), message.DeliveryOf(m))
	require.Equal(t, purged(true), message.DeliveryOf(message.With(m, "a")))
	require.Equal(t, purged(true), message.DeliveryOf(message.Split(m, 1, 2)[1]))
	require.Nil(t, message.DeliveryOf(message.Attach(message.Message[int]{}, purged(true))), "it keeps no delivery")
}

func TestIsPurged(t *testing.T) {
	m, _ := settled(1)
	require.False(t, m.IsPurged(), "it lacks a delivery")
	require.False(t, message.Attach(m, purged(false)).IsPurged())
	require.True(t, message.Attach(m, purged(true)).IsPurged())
}

func TestDeliveryFromContext(t *testing.T) {
	require.Nil(t, message.DeliveryFromContext(t.Context()))
	m, _ := settled(1)
	ctx := message.NewContext(t.Context(), message.Attach(m, purged(true)))
	require.Equal(t, purged(true), message.DeliveryFromContext(ctx))
}
