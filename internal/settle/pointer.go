package settle

import (
	"maps"
	"strings"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// IsPointsTo reports whether a header has the name [store.HeaderPointsTo], ignoring upper
// and lower case.
func IsPointsTo(name string) bool { return strings.EqualFold(name, store.HeaderPointsTo) }

// DropPointsTo removes [store.HeaderPointsTo] from a message that has its bytes. A client
// may have set it, to make the message look like a pointer when it is a dead letter.
func DropPointsTo(meta *message.Meta) {
	for name := range meta.Headers {
		if !IsPointsTo(name) {
			continue
		}
		meta.Headers = maps.Clone(meta.Headers) // others may share it
		maps.DeleteFunc(meta.Headers, func(name, _ string) bool { return IsPointsTo(name) })
		return
	}
}
