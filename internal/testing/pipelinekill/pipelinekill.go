// Package pipelinekill tests stores, inputs and outputs: it runs the pipelines of
// partitions ([partitions.Run]) in processes, and kills these at random, or pauses them
// for longer than their leases. The workers run the test binary again.
package pipelinekill

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/child/workers"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/partitions"
)

const (
	name = "pipelines"

	workerN    = 3
	partitionN = 5
	lease      = 1500 * time.Millisecond
	patience   = 2 * time.Minute
)

// Engine has the systems that the pipelines use.
type Engine struct {
	Locks  lock.Locks
	Stores partitions.Stores
	Input  func(partition string) checkpoint.Input[int] // the numbers from 0 to n-1
	Output func(partition string) checkpoint.Output[int]
	Close  func()

	Unordered bool // the operators are unordered, because a stale owner's elements would take the places of others
}

// Open opens the engine at a DSN.
type Open func(ctx context.Context, dsn string) (Engine, error)

// Partitions returns the names of the partitions.
func Partitions() (names []string) {
	for i := range partitionN {
		names = append(names, "p"+strconv.Itoa(i))
	}
	return names
}

// Elements returns the number of elements in each partition. Workers call it, too, before
// they could parse flags such as -short.
func Elements() int {
	if suite.Long() {
		return 10_000
	}
	return 300
}

// Child runs a worker, and does not return, if [Run] started this process. TestMain must
// call it first.
func Child(open Open) { workers.Child(name, open, work) }

func work(ctx context.Context, e Engine) error {
	defer e.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("pid", os.Getpid())
	double := asyncop.Blocking(func(ctx context.Context, v int) (int, error) {
		select {
		case <-time.After(rand.N(20 * time.Millisecond)):
		case <-ctx.Done():
		}
		return 2 * v, ctx.Err()
	})
	return partitions.Run(ctx, partitions.Config{
		Assigner: &partitions.Leases{
			Locks: e.Locks, Group: "test", Partitions: Partitions(), Lease: lease, Poll: lease / 10, Logger: logger,
		},
		Stores:      e.Stores,
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(50 * time.Millisecond), checkpoint.WithLogger(logger)},
		Logger:      logger,
		Pipeline: func(ctx context.Context, p partitions.Partition) error {
			source := checkpoint.NewSource(p.Coordinator, "source", e.Input(p.Name))
			build := asyncop.OrderedWait[int, int]
			if e.Unordered {
				build = asyncop.UnorderedWait[int, int]
			}
			op := build(double, time.Minute, 6, asyncop.WithName("double"), asyncop.WithCheckpoints(p.Coordinator),
				asyncop.WithContext(ctx), asyncop.WithLogger(logger))
			sink := checkpoint.NewSink(p.Coordinator, "sink", e.Output(p.Name))
			if err := p.Coordinator.Start(); err != nil {
				return err
			}
			source.Via(op).To(sink)
			return errors.Join(p.Coordinator.Wait(), op.Wait())
		},
	})
}

// Config configures [Run].
type Config struct {
	DSN string
	// Count returns the number of elements in all outputs. Rows returns a partition's
	// elements in output order.
	Count     func(ctx context.Context) (int, error)
	Rows      func(ctx context.Context, partition string) ([]int, error)
	Unordered bool // same as [Engine.Unordered]
	// KillServer, if not nil, kills and restarts a server, on the test's goroutine.
	KillServer func()
}

// Run kills and pauses workers while they work: three times by default, six times in CI,
// 80 times with WEIR_LONG=1. In the end each element is in its partition's output once,
// and all are in order (laws C1, P1).
func Run(t *testing.T, c Config) {
	t.Helper()
	kills, every := 3, 3
	switch {
	case suite.Long():
		kills, every = 80, 6
	case suite.Full():
		kills, every = 6, 3
	}
	all := workers.Start(t, name, c.DSN, workerN, patience)
	total := partitionN * Elements()
	begun, servers := time.Now(), 0
	for kill := 1; kill <= kills; kill++ {
		c.progress(t, all, kill*total*9/10/kills)
		if kill%3 == 2 {
			all.Stop(lease + lease/2)
		} else {
			all.Kill()
		}
		if c.KillServer != nil && kill%every == 0 {
			c.KillServer()
			servers++
		}
	}
	c.progress(t, all, total)
	took := time.Since(begun)
	all.End()
	c.check(t)
	if t.Failed() {
		t.Log(all.Output())
	}
	t.Logf("%d elements in %v, %d kills and %d stops of %d workers, %d kills of servers",
		total, took.Round(time.Millisecond), all.Kills, all.Stops, workerN, servers)
}

func (c Config) progress(t *testing.T, all *workers.Workers, enough int) {
	t.Helper()
	before, changed := 0, time.Now()
	for {
		n, err := c.Count(t.Context())
		if err == nil && n >= enough {
			return
		}
		if err == nil && n != before {
			before, changed = n, time.Now()
		}
		require.Less(t, time.Since(changed), patience, "no progress: %d of %d, %v: %v", before, enough, err, all.Output())
		all.MustRun()
		time.Sleep(20 * time.Millisecond)
	}
}

func (c Config) check(t *testing.T) {
	t.Helper()
	var want []int
	for i := range Elements() {
		want = append(want, 2*i)
	}
	for _, p := range Partitions() {
		got, err := child.Again(t.Context(), func(ctx context.Context) ([]int, error) { return c.Rows(ctx, p) })
		require.NoError(t, err)
		if c.Unordered {
			slices.Sort(got)
		}
		if !slices.Equal(want, got) {
			t.Errorf("partition %s: %s", p, difference(got, want))
		}
	}
}

func difference(got, want []int) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return "element " + strconv.Itoa(i) + " is " + strconv.Itoa(got[i]) + ", want " + strconv.Itoa(want[i])
		}
	}
	return strconv.Itoa(len(got)) + " elements, want " + strconv.Itoa(len(want))
}
