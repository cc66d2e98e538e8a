package store_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
)

// Lines of an export, with a JSON payload and with another one (law W4).
func TestFormatOfAMessage(t *testing.T) {
	for name, payload := range map[string]string{"message.json": `{"n":5}`, "message-base64.json": "\xff\x00"} {
		want := golden.Message()
		want.Payload = []byte(payload)
		b, err := want.MarshalJSON()
		require.NoError(t, err)
		var got store.Message
		require.NoError(t, json.Unmarshal(golden.Written(t, name, b), &got))
		require.Equal(t, want, got)
	}
}
