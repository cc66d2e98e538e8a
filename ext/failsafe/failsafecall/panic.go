package failsafecall

import (
	"runtime/debug"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/guard"
)

// newPanicError wraps what recover returned; nil stands for runtime.Goexit.
func newPanicError(recovered any) error {
	if recovered == nil {
		recovered = guard.ErrGoexit
	}
	return &asyncop.PanicError{Value: recovered, Stack: debug.Stack()}
}
