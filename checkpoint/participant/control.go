package participant

import (
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/queue"
)

// IsControl reports whether an element of a stream is a control element: a watermark, a
// barrier, or the notice that a step of weir has failed, which only steps of weir and a
// [Passer] receive. Flows pass control elements on.
func IsControl(v any) bool {
	switch v.(type) {
	case queue.Watermark, Barrier, wiring.Failure:
		return true
	}
	return false
}
