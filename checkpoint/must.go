package checkpoint

import (
	"fmt"

	"github.com/weirflow/weir/internal/nils"
)

// mustHave panics if an argument is nil, also a nil pointer in an interface.
func mustHave(function, what string, v any) {
	if nils.Is(v) {
		panic(fmt.Sprintf("checkpoint: %s: nil %s", function, what))
	}
}
