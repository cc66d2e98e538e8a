package storearg

import (
	"strconv"

	"github.com/weirflow/weir/message"
)

// OriginOfPut returns the origin of the put of a message that was taken from a queue, or
// listed in it (law W5). The first source that takes a message derives it from the place
// of the message, which is never used again. The message then keeps it in all queues that
// it is handed over to. position is 0 if the store has no positions; then entry names the
// message.
func OriginOfPut(queue string, meta *message.Meta, position int64, entry string) string {
	if meta.Put != "" {
		return meta.Put
	}
	if position > 0 {
		entry = strconv.FormatInt(position, 10)
	}
	return message.Origin{Source: queue, Position: entry}.ID()
}
