//go:build failpoint && unix

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/weirflow/weir/checkpoint"
)

// StoreOptions returns an option that kills the process before the step of a
// checkpoint's write that has the number in HBASE_LIKE_KILL_AT_STEP, from 1 and
// counted over all checkpoints of the run.
func StoreOptions() []checkpoint.StoreOption {
	at, err := strconv.Atoi(os.Getenv("HBASE_LIKE_KILL_AT_STEP"))
	if err != nil {
		return nil
	}
	steps := 0 // checkpoints are written one at a time
	return []checkpoint.StoreOption{checkpoint.WithStepHook(func(step string) {
		if steps++; steps == at {
			_, _ = fmt.Fprintf(os.Stderr, "killed before step %q\n", step)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		}
	})}
}
