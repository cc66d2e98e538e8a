//go:build failpoint && unix

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/weirflow/weir/checkpoint"
)

// variable names the environment variable that says where to kill the process:
// "sync:3" is before the third sync of a checkpoint's file. The steps are those of
// [checkpoint.WithStepHook].
const variable = "HBASE_LIKE_KILL_AT"

// StoreOptions returns an option that kills the process there.
func StoreOptions() []checkpoint.StoreOption {
	name, number, _ := strings.Cut(os.Getenv(variable), ":")
	left, err := strconv.Atoi(number)
	if err != nil {
		return nil
	}
	return []checkpoint.StoreOption{checkpoint.WithStepHook(func(step string) { // one call at a time
		if step != name {
			return
		}
		if left--; left == 0 {
			_, _ = fmt.Fprintf(os.Stderr, "killed before step %q\n", step)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		}
	})}
}
