//go:build failpoint && unix

package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/weirflow/weir/checkpoint"
)

// failpoints lets the tests kill the process inside the write of a checkpoint:
// before the step of that number, from 1, that changes the disk. The build tag
// keeps it out of every other binary.
func failpoints() []checkpoint.StoreOption {
	at, err := strconv.Atoi(os.Getenv("HBASE_LIKE_KILL_AT_STEP"))
	if err != nil {
		return nil
	}
	steps := 0 // saves, and so their steps, come one at a time
	return []checkpoint.StoreOption{checkpoint.WithStepHook(func(step string) {
		if steps++; steps == at {
			_, _ = fmt.Fprintf(os.Stderr, "killed before step %q\n", step)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})}
}
