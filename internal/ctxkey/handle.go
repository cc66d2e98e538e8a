package ctxkey

import "context"

// Handle is the value of the key Delivery: what the source of a message keeps about the
// message while it is in flight. It travels in message.Message and in the context of a
// call. Its methods are safe for concurrent use, and their cost does not depend on the
// number of messages in flight.
type Handle interface {
	// Owner returns the ladder of the queue whose source has received the message.
	Owner() any

	// Is reports whether the message has this id and is in this visit. It returns false
	// for a part, and for a message that a program has renamed.
	Is(id string, visit, merges int) bool

	// AsReceived returns the payload and the schema that were received. isSame is false
	// if their value differs from the value of encoded: the program has changed it.
	AsReceived(encoded []byte) (payload, schema []byte, isSame bool)

	// Provider returns the provider that the message has now, or "".
	Provider() string

	// SetProvider stores a provider with the message. isKept is false if the message is
	// not in flight any more, or its source cannot keep a provider.
	SetProvider(ctx context.Context, provider string) (isKept bool, err error)
}
