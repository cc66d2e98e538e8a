//go:build failpoint && unix

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/weirflow/weir/internal/testing/testhook"
)

// variable names the environment variable that selects where to kill the process:
// "sync:3" is before the third sync of a checkpoint's file. [testhook.OnStoreStep] lists
// the steps.
const variable = "HBASE_LIKE_KILL_AT"

// Arm makes stores opened from now on kill the process at that step.
func Arm() {
	name, number, _ := strings.Cut(os.Getenv(variable), ":")
	left, err := strconv.Atoi(number)
	if err != nil {
		return
	}
	testhook.OnStoreStep(func(step string) { // steps are reported one at a time
		if step != name {
			return
		}
		if left--; left == 0 {
			_, _ = fmt.Fprintf(os.Stderr, "killed before step %q\n", step)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	})
}
