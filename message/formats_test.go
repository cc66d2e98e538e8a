package message_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/message"
)

// Law W4.
func TestFormatsOfMeta(t *testing.T) {
	want := golden.Message().Meta
	want.Due = golden.At

	headers, err := want.ToHeaders()
	require.NoError(t, err)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		b.WriteString(name + ": " + headers[name] + "\n")
	}
	stored := map[string]string{}
	for line := range strings.Lines(string(golden.Written(t, "headers", []byte(b.String())))) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		stored[name] = value
	}
	got, err := message.MetaFromHeaders(stored)
	require.NoError(t, err)
	require.Equal(t, want, got)

	object, err := json.Marshal(want)
	require.NoError(t, err)
	var meta message.Meta
	require.NoError(t, json.Unmarshal(golden.Written(t, "meta.json", object), &meta))
	require.Equal(t, want, meta)
}
