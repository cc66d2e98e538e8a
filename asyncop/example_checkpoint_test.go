package asyncop_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
)

// The keys in the lines of a file are looked up, and the results are written to another
// file, exactly once. If the program is killed at any time and started again, it
// continues from its last checkpoint.
func ExampleWithCheckpoints() {
	defer inTempDir()()
	mustHave(0, os.WriteFile("keys.txt", []byte("LHR\nCDG\n"), 0o600))
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		row, err := table.Get(ctx, key)
		return row.Name, err
	})

	run := func() {
		store := mustHave(files.OpenDir("checkpoints"))
		coordinator := mustHave(checkpoint.NewCoordinator(store, checkpoint.WithInterval(10*time.Second)))
		defer coordinator.Close()

		source := checkpoint.NewSource(coordinator, "keys", mustHave(files.OpenLines("keys.txt")))
		op := asyncop.OrderedWait(lookup, 5*time.Second, 1000,
			asyncop.WithName("lookup"), asyncop.WithCheckpoints(coordinator))
		sink := checkpoint.NewSink(coordinator, "rows", files.NewLineOutput("rows.txt"))

		if err := coordinator.Start(); err != nil {
			log.Fatal(err) // the checkpoint does not fit this pipeline
		}
		source.Via(op).To(sink)
		if err := coordinator.Wait(); err != nil {
			log.Fatal(err) // the next start continues from the last checkpoint
		}
	}
	run()
	run() // continues from the end: all lines are done, and no result is written twice
	fmt.Printf("%s", mustHave(os.ReadFile("rows.txt")))
	// Output:
	// London
	// Paris
}

func mustHave[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// inTempDir makes a new directory the current one, until the returned function is called.
func inTempDir() (back func()) {
	before, dir := mustHave(os.Getwd()), mustHave(os.MkdirTemp("", "example"))
	mustHave(0, os.Chdir(dir))
	return func() {
		mustHave(0, os.Chdir(before))
		mustHave(0, os.RemoveAll(dir))
	}
}
