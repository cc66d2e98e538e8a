// Package pipelinekill runs the pipelines of partitions ([partitions.Run]) in several processes, and kills these at random, or stops them for
// longer than their leases. It is for the tests of stores, inputs and outputs: it runs the test binary again as the workers.
package pipelinekill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/internal/child"
	"github.com/weirflow/weir/partitions"
)

const (
	name    = "pipelines" // of the children
	envLong = "WEIR_LONG"

	workers    = 3
	partitionN = 5
	lease      = 1500 * time.Millisecond
	patience   = time.Minute // for anything to happen
)

// Engine is what the pipelines work on.
type Engine struct {
	Locks  lock.Locks
	Stores partitions.Stores
	Input  func(partition string) checkpoint.Input[int] // of the numbers from 0 to n-1
	Output func(partition string) checkpoint.Output[int]
	Close  func()

	Unordered bool // the operators are: elements of a stale owner would take the places of others
}

// Open opens the engine at a place.
type Open func(ctx context.Context, place string) (Engine, error)

// Partitions are the names of the partitions.
func Partitions() (names []string) {
	for i := range partitionN {
		names = append(names, "p"+strconv.Itoa(i))
	}
	return names
}

// Elements is how many elements each partition has.
func Elements() int {
	if os.Getenv(envLong) != "" {
		return 10_000
	}
	return 300
}

// Child is a worker, if this process was started by [Run]; it does not return then. TestMain calls it first.
func Child(open Open) {
	child.Run(name, func(place string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		fmt.Println("ready for signals")
		e, err := child.Again(ctx, func(ctx context.Context) (Engine, error) { return open(ctx, place) })
		if ctx.Err() != nil {
			return nil // it was ended before it has begun
		}
		if err != nil {
			return err
		}
		defer e.Close()
		return work(ctx, e)
	})
}

func work(ctx context.Context, e Engine) error {
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

// Config says what [Run] does.
type Config struct {
	Place string
	// Count returns how many elements are in the outputs, all together; Rows returns those of a partition in the order of its output.
	Count     func(ctx context.Context) (int, error)
	Rows      func(ctx context.Context, partition string) ([]int, error)
	Unordered bool // as [Engine.Unordered]
	// KillServer kills a server and starts it again; nil: there is none. It is called on the goroutine of the test.
	KillServer func()
}

// Run kills and stops workers while they work: a few times by default, more than fifty times with WEIR_LONG. In the end each element is in the
// output of its partition once, and all are in order (laws C1, P1).
func Run(t *testing.T, c Config) {
	t.Helper()
	kills, every := 6, 3
	if os.Getenv(envLong) != "" {
		kills, every = 80, 6
	}
	all := make([]*child.Process, workers)
	start := func(i int) {
		var err error
		all[i], err = child.Start(name, c.Place)
		require.NoError(t, err)
	}
	for i := range all {
		start(i)
	}
	output := func() (last []string) {
		for _, w := range all {
			last = append(last, w.Output())
		}
		return last
	}
	defer func() {
		for _, w := range all {
			_ = w.Kill() // it may have ended
		}
	}()
	total := partitionN * Elements()
	progress := func(least int) {
		before, changed := 0, time.Now()
		for {
			n, err := c.Count(t.Context())
			if err == nil && n >= least {
				return
			}
			if err == nil && n != before {
				before, changed = n, time.Now()
			}
			require.Less(t, time.Since(changed), patience, "no progress: %d of %d, %v: %v", before, total, err, output())
			for _, w := range all {
				select {
				case <-w.Ended():
					t.Fatalf("a worker has ended: %v", w.Output())
				default:
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	begun, stops, servers := time.Now(), 0, 0
	for kill := 1; kill <= kills; kill++ {
		progress(kill * total * 9 / 10 / kills)
		i, stopped := rand.IntN(workers), false
		if kill%3 == 2 {
			var err error
			stopped, err = all[i].Pause(lease + lease/2)
			require.NoError(t, err)
		}
		if stopped {
			stops++
		} else {
			require.NoError(t, all[i].Kill())
			start(i)
		}
		if c.KillServer != nil && kill%every == 0 {
			c.KillServer()
			servers++
		}
	}
	progress(total)
	took := time.Since(begun)
	for _, w := range all {
		_, err := w.Line(patience) // one that was started just now does not know the signal yet
		require.NoError(t, err)
		require.NoError(t, w.Signal(syscall.SIGTERM))
		require.NoError(t, w.Wait(patience))
	}
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
	if t.Failed() {
		t.Log(output())
	}
	t.Logf("%d elements in %v, %d kills and %d stops of %d workers, %d kills of servers", total, took.Round(time.Millisecond), kills-stops, stops, workers, servers)
}

func difference(got, want []int) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return "element " + strconv.Itoa(i) + " is " + strconv.Itoa(got[i]) + ", want " + strconv.Itoa(want[i])
		}
	}
	return strconv.Itoa(len(got)) + " elements, want " + strconv.Itoa(len(want))
}
