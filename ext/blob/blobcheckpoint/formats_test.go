package blobcheckpoint_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/ext/blob/blobcheckpoint"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The objects of a pipeline: their names, and their contents, with "x" in place of the
// random name of the store (law W4).
func TestFormatOfObjects(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	want := &checkpoint.Snapshot{ID: 7, Kind: checkpoint.Drain, Time: golden.At, States: map[string]participant.State{"in": {{1, 2}}}}
	store, err := blobcheckpoint.New(bucket, "prefix").Open(t.Context(), "a pipeline", 3)
	require.NoError(t, err)
	require.NoError(t, store.Save(t.Context(), want))
	require.NoError(t, store.Close())
	var written strings.Builder
	const mark = "\n----\n"
	for list := bucket.List(nil); ; {
		object, err := list.Next(t.Context())
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		b, err := bucket.ReadAll(t.Context(), object.Key)
		require.NoError(t, err)
		at := strings.Index(string(b), "store ") + len("store ")
		random := string(b[at : at+26])
		written.WriteString(object.Key + "\n" + strings.ReplaceAll(string(b), random, strings.Repeat("x", len(random))) + mark)
	}

	old := memblob.OpenBucket(nil)
	defer old.Close()
	for part := range strings.SplitSeq(strings.TrimSuffix(string(golden.Written(t, "objects", []byte(written.String()))), mark), mark) {
		name, contents, _ := strings.Cut(part, "\n")
		require.NoError(t, old.WriteAll(t.Context(), name, []byte(contents), &blob.WriterOptions{ContentType: "application/octet-stream"}))
	}
	store, err = blobcheckpoint.New(old, "prefix").Open(t.Context(), "a pipeline", 4)
	require.NoError(t, err)
	entries, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, entries, 1)
	got, err := store.Load(t.Context(), 7)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
