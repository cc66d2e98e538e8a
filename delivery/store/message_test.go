package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func TestMessageValidate(t *testing.T) {
	for want, m := range map[string]store.Message{
		"": {Meta: message.Meta{ID: "1", Visit: 2}, Delay: time.Second},
		"store: a message without an id (Meta.ID)":                                   {},
		`store: message "1": the delay -1ns is negative`:                             {Meta: message.Meta{ID: "1"}, Delay: -1},
		`store: message "1": visit -1, merges 0 and attempts 0 must not be negative`: {Meta: message.Meta{ID: "1", Visit: -1}},
		`store: message "1": visit 0, merges -2 and attempts 0 must not be negative`: {Meta: message.Meta{ID: "1", Merges: -2}},
		`store: message "1": visit 0, merges 0 and attempts -3 must not be negative`: {Meta: message.Meta{ID: "1", Attempts: -3}},
	} {
		err := m.Validate()
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, want)
	}
}

// A clone shares no memory with its message.
func TestMessageClone(t *testing.T) {
	newMessage := func() store.Message {
		return store.Message{
			Meta: message.Meta{
				ID: "1", Reasons: []string{"busy"}, Timeline: []message.Step{{Visit: 1}}, Headers: map[string]string{"h": "v"},
			},
			Payload: []byte("payload"), Schema: []byte("schema"),
		}
	}
	m := newMessage()
	c := m.Clone()
	require.Equal(t, m, c)
	c.Meta.Reasons[0], c.Meta.Timeline[0].Visit, c.Meta.Headers["h"] = "down", 2, "w"
	c.Payload[0], c.Schema[0] = 'P', 'S'
	require.Equal(t, newMessage(), m)
}

// A pointer lacks the bytes of its message. A message with bytes may have such a header
// from another program.
func TestMessagePointsTo(t *testing.T) {
	place := map[string]string{store.HeaderPointsTo: "topic orders, partition 0, offset 17"}
	pointer := store.Message{Meta: message.Meta{ID: "1", Headers: place}}
	require.Equal(t, "topic orders, partition 0, offset 17", pointer.PointsTo())
	whole := store.Message{Meta: message.Meta{ID: "1", Headers: place}, Payload: []byte("17")}
	require.Empty(t, whole.PointsTo())
	plain := store.Message{Meta: message.Meta{ID: "1"}}
	require.Empty(t, plain.PointsTo())
}
