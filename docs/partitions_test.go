package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/partitions"
)

func Example_partitions() {
	dir, err := os.MkdirTemp("", "partitions")
	check(err)
	defer os.RemoveAll(dir)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		check(os.WriteFile(filepath.Join(dir, name+".txt"), []byte(name+"1\n"+name+"2\n"), 0o600))
	}
	lookUp := asyncop.Blocking(func(_ context.Context, key string) (string, error) { return strings.ToUpper(key), nil })
	ctx := context.Background()

	store := backend.New("store", backend.Limit(50)) // calls at once, of all partitions here
	pipeline := func(ctx context.Context, p partitions.Partition) error {
		lines, err := files.OpenLines(filepath.Join(dir, p.Name+".txt"))
		if err != nil {
			return err
		}
		source := checkpoint.NewSource(p.Coordinator, "source", lines)
		op := asyncop.OrderedWait(lookUp, 5*time.Second, 1000, asyncop.WithName("look up"),
			asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx), asyncop.WithBackend(store))
		sink := checkpoint.NewSink(p.Coordinator, "sink", files.NewLineOutput(filepath.Join(dir, p.Name+".out")))
		if err := p.Coordinator.Start(); err != nil {
			return err
		}
		source.Via(op).To(sink)
		return p.Coordinator.Wait()
	}

	err = partitions.Run(ctx, partitions.Config{
		Assigner:    partitions.Static(names...),
		Stores:      partitions.Dirs(filepath.Join(dir, "checkpoints")),
		Pipeline:    pipeline,
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(10 * time.Second)},
	})

	check(err)
	for _, name := range names {
		rows, err := os.ReadFile(filepath.Join(dir, name+".out"))
		check(err)
		fmt.Printf("%s: %q\n", name, rows)
	}
	// Output:
	// a: "A1\nA2\n"
	// b: "B1\nB2\n"
	// c: "C1\nC2\n"
}

func Example_leases() {
	dir, err := os.MkdirTemp("", "leases")
	check(err)
	defer os.RemoveAll(dir)
	names := []string{"a", "b", "c", "d"}
	engine := memory.Open() // SQLite, PostgreSQL or JetStream for several processes
	locks := engine.Locks()

	var owners sync.Map
	var ended, workers sync.WaitGroup
	ended.Add(len(names))
	ctx, cancel := context.WithCancel(context.Background())
	for _, worker := range []string{"worker 1", "worker 2"} {
		workers.Go(func() {
			check(partitions.Run(ctx, partitions.Config{
				Assigner: &partitions.Leases{
					Locks:      locks,
					Group:      "flights",
					Partitions: names, // all of them, at each worker
					Lease:      300 * time.Millisecond,
				},
				Stores: partitions.Dirs(dir),
				Pipeline: func(ctx context.Context, p partitions.Partition) error {
					source := checkpoint.NewSource(p.Coordinator, "source", checkpointtest.NewSliceInput([]string{p.Name}))
					sink := checkpoint.NewSink(p.Coordinator, "sink", files.NewLineOutput(filepath.Join(dir, p.Name+".txt")))
					if err := p.Coordinator.Start(); err != nil {
						return err
					}
					source.Via(flow.NewMap(strings.ToUpper)).To(sink)
					if err := p.Coordinator.Wait(); err != nil {
						return err // such as when the lease has ended: another worker continues
					}
					if _, before := owners.LoadOrStore(p.Name, worker); !before {
						ended.Done()
					}
					return nil
				},
				Logger: quiet,
				Engine: engine, // also the place of the locks
				Name:   "flights",
			}))
		})
	}
	ended.Wait()
	cancel() // the workers suspend what they have, and leave
	workers.Wait()
	rows, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	check(err)
	fmt.Println(len(rows), "partitions have ended")
	// Output: 4 partitions have ended
}
