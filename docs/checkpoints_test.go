package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/codec"
)

// enrich reads the keys of a file, looks each up, and writes the rows to another file,
// exactly once. Run again after a crash, it continues from its last checkpoint.
func enrich(dir, keys, rows string) error {
	store, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	defer store.Close()
	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(10*time.Second))
	if err != nil {
		return err
	}
	defer coordinator.Close()
	input, err := files.OpenLines(keys)
	if err != nil {
		return err
	}

	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		return key + " " + strings.ToUpper(key), nil
	})
	source := checkpoint.NewSource(coordinator, "keys", input)
	op := asyncop.OrderedWait(lookup, 5*time.Second, 1000,
		asyncop.WithName("lookup"), asyncop.WithCheckpoints(coordinator,
			asyncop.State[string, string]{Results: codec.JSON[string]()}))
	sink := checkpoint.NewSink(coordinator, "rows", files.NewLineOutput(rows))

	if err := coordinator.Start(); err != nil {
		return err // the checkpoint does not fit this pipeline
	}
	source.Via(op).To(sink)
	return coordinator.Wait()
}

func Example_checkpoints() {
	dir := must(os.MkdirTemp("", "checkpoints"))
	defer os.RemoveAll(dir)
	keys, rows := filepath.Join(dir, "keys.txt"), filepath.Join(dir, "rows.txt")
	check(os.WriteFile(keys, []byte("lhr\ncdg\n"), 0o600))

	check(enrich(filepath.Join(dir, "checkpoints"), keys, rows))
	fmt.Print(string(must(os.ReadFile(rows))))
	// Output:
	// lhr LHR
	// cdg CDG
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
