// Package jobkill kills processes that run an engine's job at random steps, and checks
// that each message was merged once. The processes run the test binary again.
package jobkill

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

const (
	name     = "jobkill"
	step     = 500 // maximum messages per step
	patience = 5 * time.Minute
)

// Open opens the engine at a DSN.
type Open func(ctx context.Context, dsn string) (store.Keeper, error)

// Child runs a job if this process is a child. TestMain must call it first.
func Child(open Open) {
	child.Run(name, func(arg string) error {
		number, dsn, _ := strings.Cut(arg, " ")
		id, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		ctx := context.Background()
		engine, err := open(ctx, dsn)
		if err != nil {
			return err
		}
		job, err := of(engine).Run(ctx, id, nil)
		fmt.Println("ended:", job.State(), err)
		return err
	})
}

func of(e store.Keeper) *jobs.Jobs {
	j, err := jobs.New(e, jobs.Config{Lease: 150 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	return j
}

// Run merges many messages. Laws J1, D1, D5.
func Run(t *testing.T, dsn string, open Open) {
	t.Helper()
	n, kills := 100_000, 25
	switch {
	case !suite.Full():
		n, kills = 6000, 3
	case suite.Race:
		n, kills = 20_000, 5
	}
	ctx := t.Context()
	e, err := open(ctx, dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	Put(t, e, n)
	job, err := of(e).Start(ctx, jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", By: "ann", Why: "test"})
	require.NoError(t, err)
	job, last := Kill(t, e, job, kills, func(job jobs.Job) *child.Process {
		p, err := child.Start(name, strconv.Itoa(job.ID)+" "+dsn)
		require.NoError(t, err)
		return p
	})
	require.NoError(t, last.Wait(patience))
	Check(t, e, n, job)
}

// Put puts n dead letters into the queue "dead".
func Put(t *testing.T, e store.Keeper, n int) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		ms := make([]store.Message, 1000)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: strconv.Itoa(from + i), Visit: 3}, Payload: []byte(strconv.Itoa(from + i)), Cause: store.Exhausted}
		}
		require.NoError(t, e.Put(t.Context(), "dead", ms...))
	}
}

// Kill kills processes that run a job, at most kills times, each after a random number of
// steps, until the job has ended. It returns the last process of start.
func Kill(t *testing.T, e store.Keeper, job jobs.Job, kills int, start func(job jobs.Job) *child.Process) (jobs.Job, *child.Process) {
	t.Helper()
	j := of(e)
	begun, killed := time.Now(), 0
	for {
		p := start(job)
		target := job.Done + rand.IntN(max(1, job.Total/step/kills))*step
		for since := time.Now(); ; time.Sleep(time.Millisecond) {
			var err error
			job, err = j.Get(t.Context(), job.ID)
			require.NoError(t, err)
			if !job.Ended.IsZero() || killed < kills && job.Done > target {
				break
			}
			require.Less(t, time.Since(since), patience, "a job does not go on: %+v\n%s", job, p.Output())
		}
		if !job.Ended.IsZero() {
			require.GreaterOrEqual(t, killed, kills/2, "a job gets on between a look and a kill")
			t.Logf("%d messages merged in %v, with %d kills", job.Total, time.Since(begun).Round(time.Millisecond), killed)
			return job, p
		}
		killed++
		time.Sleep(rand.N(10 * time.Millisecond)) // within a step
		_ = p.Kill()                              // it may have ended
	}
}

// Check checks that the job has merged each of n messages into the queue "orders" once.
func Check(t *testing.T, e store.Keeper, n int, job jobs.Job) {
	t.Helper()
	require.Equal(t, jobs.Progress{Done: n}, job.Progress)
	seen := make([]bool, n)
	for p := (store.Page{Max: 10_000}); ; {
		entries, err := e.List(t.Context(), "orders", store.Filter{}, p)
		require.NoError(t, err)
		if len(entries) == 0 {
			break
		}
		for _, m := range entries {
			i, err := strconv.Atoi(m.Meta.ID)
			require.NoError(t, err)
			require.False(t, seen[i], "%d is doubled", i)
			require.Equal(t, 1, m.Meta.Merges)
			seen[i], p.After = true, m.Position
		}
	}
	for i, there := range seen {
		require.True(t, there, "%d is lost", i)
	}
	left, err := e.Count(t.Context(), "dead", store.Filter{Cause: store.Exhausted})
	require.NoError(t, err)
	require.Zero(t, left.Messages)
	var events []string
	for l, err := range of(e).Log(t.Context()) {
		require.NoError(t, err)
		events = append(events, l.Event)
	}
	require.Equal(t, []string{"start", "end"}, events)
}
