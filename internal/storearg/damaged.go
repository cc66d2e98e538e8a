package storearg

import "github.com/weirflow/weir/message"

// Damaged returns the Meta of a message whose stored Meta cannot be read. Its id contains
// the position of the message. The message is unsafe to repeat, since it is unknown
// whether its call has taken effect, so a merge repeats it only if asked to.
func Damaged(source, position string, damage error) message.Meta {
	here := message.Origin{Source: source, Position: position}
	return message.Meta{ID: here.ID(), Origin: here, LastError: damage.Error(), UnsafeToRepeat: true}
}
