package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func TestJSONKeepsMessages(t *testing.T) {
	for _, payload := range []string{
		"", "null", "{}", `{"a":1}`, `{"a": 1}`, `"x"`, "1e400", "  1", "<b>", `"<b>&"`, "\"\u2028\"", "\xff", "\x00", `{"a":1}{"b":2}`, "12\n", `{"a":1,"a":2}`, `"\ud800"`,
	} {
		want := store.Message{
			Meta:  message.Meta{ID: "id\xff", Key: "k", Visit: 2, Merges: 1, LastFailure: time.Unix(1, 5).UTC(), Reasons: []string{"A"}},
			Cause: store.Permanent, Schema: []byte{0, 1},
		}
		if payload != "" {
			want.Payload = []byte(payload)
		}
		b, err := json.Marshal(want)
		require.NoError(t, err)
		require.NotContains(t, string(b), "\n")
		var got store.Message
		require.NoError(t, json.Unmarshal(b, &got), "%s", b)
		assert.Equal(t, want, got, "payload %q, JSON %s", payload, b)
	}
}

func TestJSONIsReadable(t *testing.T) {
	m := store.Message{Meta: message.Meta{ID: "orders/0/17", Visit: 3}, Payload: []byte(`{"total":12}`), Cause: store.Exhausted}
	b, err := json.Marshal(m)
	require.NoError(t, err)
	require.Equal(t, `{"meta":{"id":"orders/0/17","visit":3},"cause":"exhausted","payload":{"total":12}}`, string(b))
	formatted, err := json.MarshalIndent(m, "", "\t")
	require.NoError(t, err)
	var got store.Message
	require.NoError(t, json.Unmarshal(formatted, &got))
	require.Equal(t, m, got)
}

// Law W4: members that only a file of dead letters of an earlier version has are ignored.
func TestJSONOfALaterVersion(t *testing.T) {
	text := `{"batch":1,"meta":{"id":"a","later":1,"headers":{"Weir-Tenant":"north"}},"payload":{"n":1},"later":{"a":"<"},"signed":true,"crc":"0"}`
	var m store.Message
	require.NoError(t, json.Unmarshal([]byte(text), &m))
	want := map[string]string{"Weir-Tenant": "north", "Weir-Meta-later": "1", "Weir-Message-later": `{"a":"<"}`, "Weir-Message-signed": "true"}
	require.Equal(t, store.Message{Meta: message.Meta{ID: "a", Headers: want}, Payload: []byte(`{"n":1}`)}, m)
	b, err := m.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, `{"meta":{"id":"a","headers":{"Weir-Tenant":"north"},"later":1},"payload":{"n":1},"later":{"a":"<"},"signed":true}`, string(b))
	require.Len(t, m.Meta.Headers, 4, "the message is as it was")
}

func FuzzMessageJSON(f *testing.F) {
	f.Add([]byte(`{"meta":{"id":"orders/0/17","visit":3},"cause":"exhausted","payload":{"total":12}}`))
	f.Add([]byte(`{"meta":{"id":"a"},"payloadBase64":"AAE=","schema":"AA=="}`))
	f.Add([]byte(`{"meta":{"id":"a","b":[1e3]},"later":"<","headers":{"Weir-Message-later":"1"}}`))
	f.Add([]byte(`{"meta":{"id":"a"},"payload":null,"payloadBase64":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m store.Message
		if json.Unmarshal(b, &m) != nil {
			return
		}
		again, err := json.Marshal(m)
		require.NoError(t, err)
		var got store.Message
		require.NoError(t, json.Unmarshal(again, &got))
		if len(m.Payload) == 0 {
			m.Payload = nil
		}
		if len(m.Schema) == 0 {
			m.Schema = nil
		}
		require.Equal(t, m, got)
	})
}
