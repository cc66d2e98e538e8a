// Package handle has the handle of a delivery: what the source of a message keeps about the
// message while it is in flight. It travels in message.Message and in the context of a call.
package handle

import "context"

// Delivery is the handle of a message that was received and is in flight. Its methods are safe for
// concurrent use, and their cost does not depend on the number of messages in flight.
type Delivery interface {
	// Owner returns the ladder of the queue whose source has received the message.
	Owner() any

	// Is reports whether the handle is that of a message with this id in this visit, and not of a
	// part, or of a message that a program has renamed.
	Is(id string, visit, merges int) bool

	// AsReceived returns the payload and the schema that were received. isSame is false if their
	// value is another than that of encoded: the program has changed it.
	AsReceived(encoded []byte) (payload, schema []byte, isSame bool)

	// Provider returns the provider that the message has now, or "".
	Provider() string

	// SetProvider stores a provider with the message. isKept is false if the message is not in
	// flight any more, or its source cannot keep a provider.
	SetProvider(ctx context.Context, provider string) (isKept bool, err error)
}
