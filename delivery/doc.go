// Package delivery has queues, workers and messages. A [Queue] lives on an engine, with
// its layers of retries and its dead letters. [Run] is a worker: it takes messages from a
// queue, calls an operator, and puts the results elsewhere. docs/first-worker.md has a
// program.
//
// Messages are stream elements that are acknowledged individually, when all their results
// are safe. So any number of workers can share a queue.
//
// A source of your own wraps each item that it receives in a message, which has a value,
// an acknowledgement, and metadata:
//
//	meta := &message.Meta{ID: origin.ID(), Origin: origin, Key: row.Customer}
//	m := message.New(row, meta, func(v message.Settlement) {
//		switch v.Kind {
//		case message.Done, message.HandedOver:
//			queue.done <- id // settle must not block: another goroutine writes it
//		case message.Released, message.Failed:
//			queue.again <- again{id, v.Delay}
//		case message.Rejected:
//			queue.dead <- dead{id, v.Err}
//		}
//	})
//
// The steps that follow pass the acknowledgement on, and the last step settles:
//
//	reply := message.With(m, charge(m.Value))    // one value in place of another
//	lines := message.Split(m, order.Lines...)    // parts: m is settled when the last of them is
//	…
//	if err := table.Insert(ctx, reply.Value); err != nil {
//		reply.Nack(5 * time.Second)
//	} else {
//		reply.Ack()
//	}
//
// Operators ([github.com/weirflow/weir/asyncop]) and the flows of package flow do that
// for functions on values.
//
// # Guarantees
//
// Each message is settled exactly once: the first of Ack, Nack, Release and Reject
// counts, on whichever copy and goroutine (law D2). A message that was split is settled
// after its parts, and acknowledged only if all of them are (D1). So a message is
// delivered at least once. A redelivered message has the same id ([message.Origin.ID]),
// and so have its parts, if they are made in the same order.
//
// [message.With] does not allocate, [message.Split] does so three times.
//
// # History
//
// [message.Meta] has the origin of a message and its history: visits, attempts, failures.
// A function of an operator reads it with [message.MetaFromContext]. It travels as
// headers ([message.Meta.ToHeaders]), and is stored as JSON.
//
// # Flows that do not know messages
//
// A flow of go-streams whose function takes rows panics on a Message of a row; give it a
// function on messages, with [message.With] inside. [message.FindLost] finds steps that
// drop a message without settling it, which is redelivered at the end of its lease.
//
// # Checkpoints
//
// With checkpoints (package checkpoint) the position of the source belongs to the
// checkpoint, so a message with its own acknowledgement is refused. A message without an
// acknowledgement passes. Its history is not part of a checkpoint: put data that must
// survive a restart into the value.
package delivery
