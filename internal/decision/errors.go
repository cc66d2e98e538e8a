package decision

import "github.com/weirflow/weir/internal/panics"

// recoverTo is deferred around user code: its panic becomes a [*panics.Error].
func recoverTo(err *error) {
	if value := recover(); value != nil {
		*err = panics.New("strategies", value)
	}
}
