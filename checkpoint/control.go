package checkpoint

import "github.com/weirflow/weir/queue"

// IsControl tells whether an element of a stream is a control element: a watermark or a barrier. Flows pass those on as
// they are.
func IsControl(v any) bool {
	switch v.(type) {
	case queue.Watermark, Barrier:
		return true
	}
	return false
}
