package jobs_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
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

// A line is found by its number, and a line that was changed is refused.
func TestJobs_LogLine(t *testing.T) {
	e := memory.Open()
	j, err := jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	for i := range 3 {
		_, err = j.PauseQueue(t.Context(), "orders", "ann", fmt.Sprint("reason ", i+1))
		require.NoError(t, err)
	}
	for n := 1; n <= 3; n++ {
		line, err := j.LogLine(t.Context(), n)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("reason ", n), line.Why)
		require.Equal(t, n, line.N)
	}
	for _, n := range []int{-1, 0, 4, 100} {
		_, err = j.LogLine(t.Context(), n)
		require.ErrorIs(t, err, fs.ErrNotExist, n)
	}
	list, err := e.Records(t.Context(), "log", "", 10)
	require.NoError(t, err)
	changed := list[1]
	changed.Value = strings.ReplaceAll(changed.Value, "ann", "eve")
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, changed) }))
	_, err = j.LogLine(t.Context(), 2)
	require.ErrorContains(t, err, "line 2 of the log was changed")
}
