package storearg

import "github.com/weirflow/weir/message"

// Damaged returns the Meta of a message whose own cannot be read. The id says where the
// message stands. Whether its call has taken effect is not known any more, so a merge
// does not repeat it unasked.
func Damaged(source, position string, damage error) message.Meta {
	here := message.Origin{Source: source, Position: position}
	return message.Meta{ID: here.ID(), Origin: here, LastError: damage.Error(), UnsafeToRepeat: true}
}
