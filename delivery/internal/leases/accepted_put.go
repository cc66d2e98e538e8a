package leases

import "github.com/weirflow/weir/message"

// Delivery distinguishes the messages of accepted puts: a message has the same Delivery
// in each queue that it is handed over to, and a later put under its id has another (law
// W5).
type Delivery struct{ ID, Put string }

// DeliveryOf returns the delivery of a message as a source returns it, or as it is stored
// after a hand-over.
func DeliveryOf(meta *message.Meta) Delivery { return Delivery{meta.ID, meta.Put} }
