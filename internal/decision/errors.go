package decision

import "github.com/weirflow/weir/internal/guard"

// recoverTo is deferred around user code: its panic becomes a [*guard.PanicError].
func recoverTo(err *error) {
	if value := recover(); value != nil {
		*err = guard.Recovered("strategies", value)
	}
}
