package files_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/weirflow/weir/checkpoint/files"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
)

// A program saves its progress, and continues from there when it is restarted.
func ExampleOpenDir() {
	dir, err := os.MkdirTemp("", "checkpoints")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	run := func() {
		store, err := files.OpenDir(dir)
		if err != nil {
			log.Fatal(err)
		}
		defer store.Close()

		next := uint64(1)
		last, skipped, err := checkpoint.Latest(ctx, store)
		switch {
		case errors.Is(err, checkpoint.ErrNotFound):
			fmt.Println("a fresh start")
		case err != nil:
			log.Fatal(err) // never a fresh start because of an error
		default:
			source, _ := last.State("source")
			fmt.Printf("continuing from checkpoint %d, %s, %d damaged\n", last.ID, source.Bytes(), len(skipped))
			next = last.ID + 1
		}

		err = store.Save(ctx, &checkpoint.Snapshot{
			ID:     next,
			Time:   time.Now(),
			States: map[string]participant.State{"source": {fmt.Appendf(nil, "line %d", 100*next)}},
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	run()
	run()
	run()
	// Output:
	// a fresh start
	// continuing from checkpoint 1, line 100, 0 damaged
	// continuing from checkpoint 2, line 200, 0 damaged
}
