package leases

import "github.com/weirflow/weir/message"

// AcceptedPut identifies a put that a queue has accepted. The message of the put has it
// in each queue that it is handed over to. A later put under the same id is another
// AcceptedPut (law W5).
type AcceptedPut struct {
	ID, Put string // message.Meta.ID and message.Meta.Put
}

// AcceptedPutOf returns the put of a message as a source returns the message, or as it is
// stored after a hand-over.
func AcceptedPutOf(meta *message.Meta) AcceptedPut { return AcceptedPut{meta.ID, meta.Put} }
