//go:build unix

package pgcheckpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgcheckpoint"
	"github.com/weirflow/weir/ext/postgres/pgstore"
	"github.com/weirflow/weir/partitions"
)

const (
	workerEnv = "WEIR_PARTITIONS_URL" // of the database: the process is a worker
	killsEnv  = "WEIR_KILLS"          // how many workers are killed or stopped; the default is 8

	partitionCount = 5
	elements       = 400 // of a partition
	lease          = 1500 * time.Millisecond
)

// tableOutput inserts the rows of a partition when they are committed. Its state has those that may not be in the table yet.
type tableOutput struct {
	pool      *pgxpool.Pool
	partition string
	state     struct {
		First int
		Rows  []int
	}
}

func (o *tableOutput) Restore(ctx context.Context, state []byte) error {
	if err := json.Unmarshal(state, &o.state); err != nil {
		return err
	}
	return o.Commit(ctx, state)
}

func (o *tableOutput) Write(_ context.Context, v int) error {
	o.state.Rows = append(o.state.Rows, v)
	return nil
}

func (o *tableOutput) Prepare(context.Context) ([]byte, error) { return json.Marshal(o.state) }

func (o *tableOutput) Commit(ctx context.Context, state []byte) error {
	s := o.state
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	_, err := o.pool.Exec(ctx, `INSERT INTO rows SELECT $1, $2::int + n - 1, v FROM unnest($3::int[]) WITH ORDINALITY AS r (v, n)
		ON CONFLICT (partition, n) DO UPDATE SET v = CASE WHEN rows.v = excluded.v THEN rows.v END`, o.partition, s.First, s.Rows)
	if err == nil {
		covered := s.First + len(s.Rows) - o.state.First
		o.state.First, o.state.Rows = o.state.First+covered, o.state.Rows[covered:]
	}
	return err
}

func (o *tableOutput) Close() error { return nil }

// work is a worker process.
func work(url string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	names := make([]string, partitionCount)
	for i := range names {
		names[i] = "p" + strconv.Itoa(i)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("pid", os.Getpid())
	fn := asyncop.Blocking(func(ctx context.Context, v int) (int, error) {
		select {
		case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
		case <-ctx.Done():
		}
		return 2 * v, ctx.Err()
	})
	return partitions.Run(ctx, partitions.Config{
		Assigner: &partitions.Leases{
			Locks: pgstore.New(pool).Locks(), Group: "test", Partitions: names, Lease: lease, Poll: lease / 10, Logger: logger,
		},
		Stores:      pgcheckpoint.New(pool),
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(50 * time.Millisecond), checkpoint.WithLogger(logger)},
		Logger:      logger,
		Pipeline: func(ctx context.Context, p partitions.Partition) error {
			input := make([]int, elements)
			for i := range input {
				input[i] = i
			}
			source := checkpoint.NewSource(p.Coordinator, "source", checkpointtest.NewSliceInput(input))
			op := asyncop.UnorderedWait(fn, time.Minute, 4, asyncop.WithName("double"), asyncop.WithCheckpoints(p.Coordinator),
				asyncop.WithContext(ctx), asyncop.WithLogger(logger))
			sink := checkpoint.NewSink(p.Coordinator, "sink", &tableOutput{pool: pool, partition: p.Name})
			if err := p.Coordinator.Start(); err != nil {
				return err
			}
			source.Via(op).To(sink)
			return errors.Join(p.Coordinator.Wait(), op.Wait())
		},
	})
}

// Laws C1 and P1, over processes: workers are killed, and stopped for longer than their leases and continued. Each row is in the table once,
// and right.
func TestKilledWorkers(t *testing.T) {
	server := pgtest.Start(t)
	pool := connect(t, server.URL(), nil)
	ctx := t.Context()
	require.NoError(t, pgcheckpoint.Migrate(ctx, pool))
	require.NoError(t, pgstore.Migrate(ctx, pool))
	server.Exec("CREATE TABLE rows (partition text, n int, v int NOT NULL, PRIMARY KEY (partition, n))") // a row that changes is an error
	kills := 8
	if n, err := strconv.Atoi(os.Getenv(killsEnv)); err == nil {
		kills = n
	}

	workers := map[*exec.Cmd]chan error{}
	start := func() {
		w := exec.CommandContext(ctx, os.Args[0])
		w.Env = append(os.Environ(), workerEnv+"="+server.URL())
		if testing.Verbose() {
			w.Stderr = os.Stderr
		}
		require.NoError(t, w.Start())
		ended := make(chan error, 1)
		go func() { ended <- w.Wait() }()
		workers[w] = ended
	}
	end := func(w *exec.Cmd, sig os.Signal) error {
		require.NoError(t, w.Process.Signal(sig))
		err := <-workers[w]
		delete(workers, w)
		return err
	}
	for range 3 {
		start()
	}
	random := rand.New(rand.NewPCG(1, 2))
	done := func() bool {
		return server.Counts("SELECT 'rows', count(*) FROM rows")["rows"] == partitionCount*elements
	}
	stopped := 0
	for n := 0; n < kills || !done(); n++ {
		require.Less(t, n, kills+100, "the rows do not come")
		time.Sleep(time.Duration(200+random.IntN(800)) * time.Millisecond) // the time of the processes is real
		if n >= kills {
			continue
		}
		for w := range workers { // any
			if random.IntN(2) == 0 {
				require.ErrorContains(t, end(w, syscall.SIGKILL), "killed")
				start()
			} else {
				stopped++
				require.NoError(t, w.Process.Signal(syscall.SIGSTOP))
				time.Sleep(lease + lease/2)
				require.NoError(t, w.Process.Signal(syscall.SIGCONT))
			}
			break
		}
	}
	for w := range workers {
		require.NoError(t, end(w, syscall.SIGTERM))
	}
	// The order differs from run to run, so rows of a stale owner would take the places of others.
	distinct := server.Counts("SELECT partition, count(DISTINCT v) FROM rows WHERE v % 2 = 0 AND v BETWEEN 0 AND " + strconv.Itoa(2*elements-2) + " GROUP BY partition")
	require.Len(t, distinct, partitionCount)
	for partition, n := range distinct {
		require.Equal(t, elements, n, partition)
	}
	epochs := server.Counts("SELECT name, epoch::int FROM weir_pipelines")
	sum := 0
	for _, epoch := range epochs {
		sum += epoch
	}
	t.Logf("%d workers killed, %d stopped, %d assignments", kills-stopped, stopped, sum)
	require.Greater(t, sum, partitionCount, "partitions have changed their owners")
}

func child() {
	if url := os.Getenv(workerEnv); url != "" {
		if err := work(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}
