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

// remove removes all records of kinds, and returns them.
func remove(t *testing.T, e store.Keeper, kinds ...string) (removed []store.Record) {
	t.Helper()
	for _, kind := range kinds {
		list, err := e.Records(t.Context(), kind, "", 100)
		require.NoError(t, err)
		removed = append(removed, list...)
	}
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		for _, r := range removed {
			r.Value = ""
			require.NoError(t, tx.Write(ctx, r))
		}
		return nil
	}))
	return removed
}

// readLog reads the whole log.
func readLog(t *testing.T, j *jobs.Jobs) (lines []jobs.Line, err error) {
	t.Helper()
	for l, err := range j.Log(t.Context()) {
		if err != nil {
			return lines, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// ranJobs runs two jobs, the first of which ends and the second is cancelled, and starts
// a third. The lines of the log are 1 start, 2 end, 3 start, 4 cancel, 5 start.
func ranJobs(t *testing.T, e store.Keeper) *jobs.Jobs {
	t.Helper()
	j := jobsOf(t, e)
	puts(t, e, "x", "dead")
	first, err := j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	_, err = j.Run(t.Context(), first.ID, nil)
	require.NoError(t, err)
	second, err := j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	_, err = j.Cancel(t.Context(), second.ID, "bob", "wrong")
	require.NoError(t, err)
	_, err = j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	lines, err := readLog(t, j)
	require.NoError(t, err)
	require.Len(t, lines, 5)
	return j
}

// Law J2: the record of a job that has ended cannot be changed without notice.
func TestLog_EndedJobChanged(t *testing.T) {
	for _, c := range []struct {
		id       int
		from, to string
	}{
		{1, `"by":"ann"`, `"by":"eve"`},
		{1, `"done":1`, `"done":0`},
		{3, `"cancelled":true,`, ``},
		{3, `{"id":3`, `{"id":`},
	} {
		e := memory.Open()
		j := ranJobs(t, e)
		list, err := e.Records(t.Context(), "job-ended", fmt.Sprintf("%012d", c.id-1), 1)
		require.NoError(t, err)
		changed := list[0]
		changed.Value = strings.ReplaceAll(changed.Value, c.from, c.to)
		require.NotEqual(t, list[0].Value, changed.Value)
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, changed) }))
		lines, err := readLog(t, j)
		require.ErrorContains(t, err, fmt.Sprintf("the record of job %d was changed", c.id), c.to)
		require.ErrorIs(t, err, jobs.ErrLogChanged)
		require.Len(t, lines, 5, "the lines are whole")
	}
}

// Law J2: the end of the log cannot be removed together with its head without notice, as
// long as the jobs are there. A new job is refused if its id is taken.
func TestLog_EndRemovedWithHead(t *testing.T) {
	e := memory.Open()
	j := ranJobs(t, e)
	list, err := e.Records(t.Context(), "log", "", 10)
	require.NoError(t, err)
	head, err := e.Records(t.Context(), "log-head", "", 1)
	require.NoError(t, err)
	hash, _, _ := strings.Cut(list[3].Value, " ")
	list[4].Value, head[0].Value = "", "4 "+hash
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		require.NoError(t, tx.Write(ctx, list[4]))
		return tx.Write(ctx, head[0])
	}))
	lines, err := readLog(t, j)
	require.EqualError(t, err, "jobs: the log ends at line 4, and job 5 exists, which began in line 5: the end of the log was removed")
	require.ErrorIs(t, err, jobs.ErrLogChanged)
	require.Len(t, lines, 4)
	_, err = j.Start(t.Context(), merge(0))
	require.ErrorContains(t, err, "job 5 exists, which began in line 5: the end of the log was removed, so a new job cannot be numbered")
}

// Law J2: without its head, the log reports the loss, and jobs and orders are refused
// with an error that names it. Regression: they failed with ErrChanged after a hundred
// attempts, or a new log began.
func TestLog_HeadLost(t *testing.T) {
	for _, kinds := range [][]string{{"log-head"}, {"log-head", "log"}, {"log-head", "log", "job"}, {"log-head", "log", "job-ended"}} {
		e := memory.Open()
		j := ranJobs(t, e)
		removed := remove(t, e, kinds...)
		_, err := readLog(t, j)
		const lost = `jobs: the record "log-head" of the log was removed, although there are lines or jobs`
		require.ErrorContains(t, err, lost, kinds)
		require.ErrorIs(t, err, jobs.ErrLogChanged)
		_, err = j.Start(t.Context(), merge(0))
		require.ErrorContains(t, err, lost, kinds)
		_, err = j.Import(t.Context(), "orders", "ann", "why", func(context.Context) (done, skipped int, err error) {
			t.Error("the import must not start")
			return 0, 0, nil
		})
		require.ErrorContains(t, err, lost, kinds)
		_, err = j.HoldBackend(t.Context(), "bank", "ann", "why")
		require.ErrorContains(t, err, lost, kinds)
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			for _, r := range removed {
				r.Version = 0
				require.NoError(t, tx.Write(ctx, r))
			}
			return nil
		}))
		_, err = j.Start(t.Context(), merge(0))
		require.NoError(t, err)
		_, err = readLog(t, j)
		require.NoError(t, err)
	}
	e := memory.Open()
	j := ranJobs(t, e)
	remove(t, e, "log-head", "log", "job", "job-ended")
	lines, err := readLog(t, j)
	require.NoError(t, err, "a documented limit")
	require.Empty(t, lines)
}

// If only the head was removed, its number and hash are those of the last line, and all
// jobs continue when a program has written it again.
func TestLog_HeadWrittenAgain(t *testing.T) {
	e := memory.Open()
	j := ranJobs(t, e)
	remove(t, e, "log-head")
	lines, err := readLog(t, j)
	require.ErrorIs(t, err, jobs.ErrLogChanged)
	last := lines[len(lines)-1]
	head := store.Record{Kind: "log-head", Name: "log", Value: fmt.Sprintf("%d %s", last.N, last.Hash)}
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, head) }))
	job, err := j.Run(t.Context(), 5, nil)
	require.NoError(t, err)
	require.Equal(t, "done", job.State())
	_, err = j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	lines, err = readLog(t, j)
	require.NoError(t, err)
	require.Len(t, lines, 7)
}

// unreadable is an engine whose records of a kind cannot be read.
type unreadable struct {
	store.Keeper
	kind string
}

func (u unreadable) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if kind == u.kind {
		return nil, fs.ErrPermission
	}
	return u.Keeper.Records(ctx, kind, after, limit)
}

// An engine that fails is not taken for a log that was changed.
func TestLog_EngineFails(t *testing.T) {
	e := memory.Open()
	ranJobs(t, e)
	for _, kind := range []string{"log", "log-head", "job", "job-ended"} {
		_, err := readLog(t, jobsOf(t, unreadable{e, kind}))
		require.ErrorIs(t, err, fs.ErrPermission, kind)
		require.NotErrorIs(t, err, jobs.ErrLogChanged, kind)
	}
}

// meanwhile is an engine on which others act once, after a read of a kind of records.
type meanwhile struct {
	store.Keeper
	kind string
	act  func()
}

func (m *meanwhile) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	list, err := m.Keeper.Records(ctx, kind, after, limit)
	if kind == m.kind && m.act != nil {
		act := m.act
		m.act = nil
		act()
	}
	return list, err
}

// Jobs that begin and end while the log is read, the first ones and others, are not taken
// for a change of the log.
func TestLog_JobsDuringTheRead(t *testing.T) {
	for _, kind := range []string{"log", "log-head", "job", "job-ended"} {
		for _, before := range []int{0, 1} {
			e := memory.Open()
			j := jobsOf(t, e)
			cancelled := func() {
				job, err := j.Start(t.Context(), merge(0))
				require.NoError(t, err)
				_, err = j.Cancel(t.Context(), job.ID, "bob", "wrong")
				require.NoError(t, err)
			}
			for range before {
				cancelled()
			}
			m := &meanwhile{Keeper: e, kind: kind, act: func() {
				cancelled()
				_, err := j.Start(t.Context(), merge(0))
				require.NoError(t, err)
			}}
			lines, err := readLog(t, jobsOf(t, m))
			require.NoError(t, err, "%s, %d jobs before", kind, before)
			require.GreaterOrEqual(t, len(lines), 2*before)
			require.Nil(t, m.act, "others have acted")
		}
	}
}
