package jobs_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// The bounds of a cancel may be long, so the lines about it do not repeat them.
func TestLog_LinesWithoutBounds(t *testing.T) {
	e := memory.Open()
	puts(t, e, "old ", "orders", "orders-dead")
	end := pausedCancel(t, e)
	open, err := e.Records(t.Context(), "job", "", 10)
	require.NoError(t, err)
	require.Len(t, open, 1)
	require.Contains(t, open[0].Value, `"bounds"`, "the job needs them")
	require.Equal(t, 2, end().Done)
	lines, err := e.Records(t.Context(), "log", "", 10)
	require.NoError(t, err)
	require.Len(t, lines, 4)
	for _, r := range lines {
		require.NotContains(t, r.Value, "bounds")
	}
	read := 0
	for l, err := range jobsOf(t, e).Log(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, 1, l.Job.ID)
		read++
	}
	require.Equal(t, 4, read)
}

// Lines that were written with bounds are read, and the chain of hashes continues.
func TestLog_OldLineWithBounds(t *testing.T) {
	const text = `{"n":1,"at":"2026-01-02T03:04:05Z","event":"start","by":"ann","why":"left","job":{"id":1,"do":"purge","queue":"orders",` +
		`"filter":{"key":"c7"},"family":true,"by":"ann","why":"left","done":0,"looping":0,"inDoubt":0,"skipped":0,"total":1,` +
		`"begun":"2026-01-02T03:04:05Z","format":4,"bounds":{"last":{"orders":1},"puts":{"orders/":1}}}}`
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:])
	e := memory.Open()
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		err := tx.Write(ctx, store.Record{Kind: "log", Name: "000000000001", Value: hash + " " + text})
		require.NoError(t, err)
		return tx.Write(ctx, store.Record{Kind: "log-head", Name: "log", Value: "1 " + hash})
	}))
	j := jobsOf(t, e)
	_, err := j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "orders", By: "ann", Why: "test"})
	require.NoError(t, err)
	var ids []int
	for l, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		ids = append(ids, l.Job.ID)
	}
	require.Equal(t, []int{1, 2}, ids)
}
