// Package golden protects the formats that weir stores. Each has a file in
// testdata/formats that the code must write today and be able to read forever (law W4).
// docs/compatibility.md lists the formats.
package golden

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// update is the environment variable that rewrites the files. Released files are never
// rewritten: a new version of a format gets a new file.
const update = "WEIR_UPDATE_FORMATS"

// Written checks that got equals testdata/formats/name, and returns the file's content to
// read.
func Written(tb testing.TB, name string, got []byte) []byte {
	tb.Helper()
	path := filepath.Join("testdata", "formats", name)
	if os.Getenv(update) != "" {
		require.NoError(tb, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(tb, os.WriteFile(path, got, 0o644))
	}
	want := Read(tb, name)
	assert.Equal(tb, string(want), string(got), "the format %s has changed: add a new version of it, and keep reading this one (law W4); %s=1 rewrites a format that no release has", name, update)
	return want
}

// Read returns testdata/formats/name, a format that the code only reads.
func Read(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "formats", name))
	require.NoError(tb, err)
	return b
}

// At is the time in the files.
var At = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// Message returns a message with all fields, and a header of a later version.
func Message() store.Message {
	return store.Message{
		Meta: message.Meta{
			ID: "orders/0/17", Key: "customer 5\xff", Origin: message.Origin{Source: "orders", Partition: "0", Position: "17"},
			Visit: 2, Attempts: 4, FirstFailure: At, LastFailure: At.Add(time.Second), Deadline: At.Add(time.Hour),
			LastError: "503: Ä, again", Reasons: []string{"unavailable", "a,b"}, UnsafeToRepeat: true,
			Request: `"0af7651916cd43dd8448eb211c80319c";seq=1;attempt=4`, Remembered: At.Add(24 * time.Hour), Provider: "acquirer-2",
			Merges: 1, Headers: map[string]string{"tenant": "blue", "Weir-Colour": "of a later version"},
		},
		Payload: []byte(`{"n":5}`), Schema: []byte("j"), Cause: store.Exhausted,
	}
}
