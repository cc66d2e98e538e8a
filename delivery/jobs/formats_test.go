package jobs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
)

var kinds = []string{"job", "job-ended", "log", "log-head", "worker", "backend"}

// The records of a job, of a cancelled job, of the log, of a worker, and of an order for
// a backend (law W4).
func TestFormatsOfRecords(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	engine := memory.Open(memory.WithClock(mock))
	writeRecords(t, engine, mock)
	old := asWritten(t, engine, mock, "records", kinds)
	want, got := readRecords(t, engine, mock), readRecords(t, old, mock)
	require.Len(t, want.jobs, 2)
	require.Equal(t, "running", want.jobs[1].State())
	require.Len(t, want.lines, 5)
	require.Len(t, want.workers, 1)
	require.Len(t, want.orders, 1)
	require.Equal(t, want, got)
}

// The records of a paused queue and of held keys, and their lines of the log (law W4).
func TestFormatsOfOrdersToWorkers(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	engine := memory.Open(memory.WithClock(mock))
	require.NoError(t, engine.Put(t.Context(), "orders", golden.Message()))
	j, err := jobs.New(engine, jobs.Config{Clock: mock})
	require.NoError(t, err)
	_, err = j.PauseQueue(t.Context(), "orders", "ann", "they migrate")
	require.NoError(t, err)
	for _, key := range []string{"customer 5", "\"ö\"\x00"} {
		_, err = j.HoldKey(t.Context(), "orders", key, "bob", "it is moved")
		require.NoError(t, err)
	}
	old, err := jobs.New(asWritten(t, engine, mock, "orders", []string{"paused", "held-key", "log", "log-head"}), jobs.Config{Clock: mock})
	require.NoError(t, err)
	for _, j := range []*jobs.Jobs{j, old} {
		paused, err := j.PausedQueues(t.Context())
		require.NoError(t, err)
		require.Len(t, paused, 1)
		require.Equal(t, []string{"orders", "ann", "they migrate"}, []string{paused[0].Queue, paused[0].By, paused[0].Why})
		require.Equal(t, golden.At, paused[0].At)
		held, err := j.HeldKeys(t.Context())
		require.NoError(t, err)
		require.Len(t, held, 2)
		require.Equal(t, []string{"orders", "\"ö\"\x00", "bob", "it is moved"}, []string{held[0].Queue, held[0].Key, held[0].By, held[0].Why})
		require.Equal(t, "customer 5", held[1].Key)
		require.Equal(t, golden.At, held[1].At)
		var about []string
		for line, err := range j.Log(t.Context()) {
			require.NoError(t, err)
			if line.Key != nil {
				about = append(about, line.Event+" "+line.Key.Key)
			} else {
				about = append(about, line.Event+" "+line.Queue.Queue)
			}
		}
		require.Equal(t, []string{"pause orders", "hold customer 5", "hold \"ö\"\x00"}, about)
	}
}

// asWritten returns an engine with the records of the golden file name. The file has the
// records of engine, of some kinds.
func asWritten(t *testing.T, engine *memory.Engine, mock *clock.Mock, name string, kinds []string) *memory.Engine {
	t.Helper()
	var written strings.Builder
	for _, kind := range kinds {
		list, err := engine.Records(t.Context(), kind, "", 100)
		require.NoError(t, err)
		for _, r := range list {
			fmt.Fprintf(&written, "%s\t%s\t%d\t%s\n", r.Kind, r.Name, r.Version, r.Value)
		}
	}
	old := memory.Open(memory.WithClock(mock))
	require.NoError(t, old.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		for line := range strings.Lines(string(golden.Written(t, name, []byte(written.String())))) {
			part := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
			version, err := strconv.ParseInt(part[2], 10, 64)
			require.NoError(t, err)
			for v := range version {
				require.NoError(t, tx.Write(ctx, store.Record{Kind: part[0], Name: part[1], Version: v, Value: part[3]}))
			}
		}
		return nil
	}))
	return old
}

func writeRecords(t *testing.T, engine *memory.Engine, mock *clock.Mock) {
	j, err := jobs.New(engine, jobs.Config{Clock: mock})
	require.NoError(t, err)
	spec := jobs.Spec{
		Do: store.Merge, Queue: "orders-dead", To: "orders", Max: 10, Rate: 2.5, UnsafeToRepeat: true, By: "ann", Why: "fixed",
		Filter: store.Filter{
			IDs: []string{"1", "2"}, Key: "k", Source: "s", Provider: "p", Cause: store.Exhausted, Reason: "r", Error: "503",
			Since: golden.At, Before: golden.At.AddDate(0, 0, 1),
		},
	}
	_, err = j.Start(t.Context(), spec)
	require.NoError(t, err)
	second, err := j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "orders", By: "bob", Why: "wait"})
	require.NoError(t, err)
	_, err = j.Cancel(t.Context(), second.ID, "bob", "no")
	require.NoError(t, err)
	_, err = j.HoldBackend(t.Context(), "payments", "ann", "they migrate")
	require.NoError(t, err)
	_, err = j.LimitBackend(t.Context(), "payments", 5, "ann", "slowly")
	require.NoError(t, err)
	worker, err := json.Marshal(jobs.Worker{ // as it is stored
		ID: "w1", Host: "a", PID: 7, Version: "v0.1.0", Since: golden.At, Seen: golden.At, Queues: []string{"orders"},
		Counts: json.RawMessage(`{"Done":3}`), Operators: []json.RawMessage{json.RawMessage(`{"Accepted":3}`)},
		Backends:    []jobs.Backend{{Name: "payments", State: "closed", Why: "503", Since: golden.At, Until: golden.At.Add(time.Minute), Limit: 5, Waiting: 1}},
		ClockOffset: -2 * time.Second,
		Partitions:  []jobs.Partition{{Pipeline: "flights", Name: "a", Epoch: 7, State: "failing", Lag: -1, Why: "no right"}},
	})
	require.NoError(t, err)
	require.NoError(t, engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "worker", Name: "w1", Value: string(worker)})
	}))
}

type records struct {
	jobs    []jobs.Job
	lines   []jobs.Line
	workers []jobs.Worker
	orders  []jobs.BackendOrder
}

func readRecords(t *testing.T, engine *memory.Engine, mock *clock.Mock) (r records) {
	j, err := jobs.New(engine, jobs.Config{Clock: mock})
	require.NoError(t, err)
	r.jobs, err = j.List(t.Context())
	require.NoError(t, err)
	for line, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		r.lines = append(r.lines, line)
	}
	r.workers, err = j.Workers(t.Context())
	require.NoError(t, err)
	r.orders, err = j.BackendOrders(t.Context())
	require.NoError(t, err)
	return r
}

// Law W4: a worker of the version before, beside this one, reads the orders and reports
// of this one, and this one reads its.
func TestResumeBackend_StoredNames(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	engine := memory.Open(memory.WithClock(mock))
	j, err := jobs.New(engine, jobs.Config{Clock: mock})
	require.NoError(t, err)
	order, err := j.ResumeBackend(t.Context(), "payments", "ann", "it is back")
	require.NoError(t, err)
	require.Equal(t, "resume", order.Event)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		j.Work(ctx, func() jobs.Worker {
			return jobs.Worker{Backends: []jobs.Backend{{Name: "payments", State: "down"}, {Name: "geo", State: "up"}, {Name: "mail", State: "held"}}}
		}, nil)
	}()
	defer func() {
		stop()
		<-ended
	}()
	require.Eventually(t, func() bool {
		list, err := j.Workers(t.Context())
		return err == nil && len(list) == 1
	}, time.Minute, time.Millisecond)

	value := func(kind string) string {
		list, err := engine.Records(t.Context(), kind, "", 10)
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0].Value
	}
	require.Contains(t, value("backend"), `"event":"open"`)
	require.Equal(t, 2, strings.Count(value("log"), `"event":"open"`), "the line, and the order in it")
	require.Contains(t, value("worker"), `"state":"closed"`)
	require.Contains(t, value("worker"), `"state":"open"`)
	require.Contains(t, value("worker"), `"state":"held"`)

	read := readRecords(t, engine, mock)
	require.Equal(t, "resume", read.orders[0].Event)
	require.Equal(t, "resume", read.lines[0].Event)
	require.Equal(t, "resume", read.lines[0].Backend.Event)
	states := []string{}
	for _, b := range read.workers[0].Backends {
		states = append(states, b.State)
	}
	require.Equal(t, []string{"down", "up", "held"}, states)
}
