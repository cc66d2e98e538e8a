package message

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
)

// Meta describes a message: its origin, and its history so far (law D6). It is replaced
// at each hop, never appended to. It travels as [Meta.ToHeaders], and is stored as JSON.
type Meta struct {
	// ID names the message in all queues that it passes. delivery.ID sets it at a put;
	// otherwise it is random. Sources other than queues derive it ([Origin.ID]). At most
	// 1,024 bytes.
	//
	// On an engine with leases, a queue keeps one message of each ID, Put, Visit and
	// Merges. So a hand-over that is repeated after a crash has no effect while the first
	// copy is there.
	ID string
	// Key is the key by which messages are ordered or taken in turn, or "". At most 1,024
	// bytes, perhaps not text.
	Key string
	// Origin is the place in a topic, stream, table or file from which a source first
	// read the message. It is zero if the message was put into a queue on an engine with
	// leases.
	Origin Origin

	// Put is the origin of the put: the place in the queue that took the message first,
	// such as "orders//5". It is "" while the message waits there for its first visit.
	// Queues set it, and pass it on to other queues. There it distinguishes the message
	// from a later put under the same id (law W5). At most 1,024 bytes. Its stored name
	// is Weir-Put.
	Put string

	// Visit is the number of the visit, from 1. A visit is a passage through an operator
	// with its attempts. It counts if its failure was handed over. If the message was
	// released or nacked in it, or its worker died, the next visit has the same number. A
	// stored message has the number of the last visit that counts, or 0. A merge resets
	// it to 0.
	Visit int
	// Attempts counts the calls begun in the earlier visits that count. A merge resets it
	// to 0.
	Attempts int
	// FirstFailure and LastFailure are when visits failed; zero without a failure.
	FirstFailure, LastFailure time.Time
	// Due is the earliest time of delivery (law D3); zero means at any time.
	Due time.Time
	// Deadline is the time after which a queue does not deliver the message
	// (delivery.Deadline); zero means never.
	Deadline time.Time
	// LastError is the text of the last failure. A stored form has its first 4,096 bytes.
	LastError string
	// Reasons are the names of the reasons why calls were retried or failed, each once,
	// in the order of their first occurrence. A stored form has the last 64.
	Reasons []string
	// Timeline lists the calls of all visits. A stored form has the first 8 and the last
	// 24.
	Timeline []Step
	// UnsafeToRepeat reports that a call for the message is in doubt: a second call may
	// do harm. It is set in these cases:
	//
	//   - A failed call may have taken effect, is not idempotent, and no predicate asked
	//     for a repeat (asyncop.Failure.UnsafeToRepeat).
	//   - A call that is not idempotent has succeeded, and its result was rejected
	//     ([NoteUnsafeToRepeat]).
	//   - A part of the message was handed over, and another part was rejected ([Split]).
	//
	// It stays true until a server answers the request with a refusal that it keeps for
	// all attempts, or until a person sends the message back after Remembered. Its stored
	// names are Weir-Outcome-Unknown and outcomeUnknown.
	UnsafeToRepeat bool
	// Request is the id of the request that is in doubt, in the form of exactlyonce.ID.
	// It is "" if the id is unknown, or if no call is in doubt. The next visit uses it
	// again, so the server recognises the request. At most 1,024 bytes.
	//
	// exactlyonce/caller appends ";only=1" if only the request of its step
	// (exactlyonce.ID.Step) may have taken effect. If the server refuses that request in
	// a later visit, the call is no longer in doubt.
	Request string
	// Remembered is the time until which the server remembers the request that is in
	// doubt. Until then the call may be repeated under the same id. It is zero if the
	// server does not remember the request.
	Remembered time.Time
	// Provider is the external system chosen for the message and its later calls, or "".
	// At most 1,024 bytes.
	Provider string
	// Outage describes the outage that made the last visit fail, for a message that waits
	// in a layer. "2;9m59s;payments" means: visit 2 failed because of an outage of the
	// backend payments, and the message may be delivered up to 9m59s earlier than Due if
	// the backend recovers. It is "" after other failures. Queues set it. At most 1,024
	// bytes. Its stored name is Weir-Outage.
	Outage string
	// Merges counts the returns from the dead letters.
	Merges int
	// MergeJob is the id of the job (package jobs) that returned it last, or 0 if
	// unknown. The log has who started it, and why. Its stored name is Weir-Merge-Job.
	MergeJob int

	// Headers are the user's headers. At most 1 MiB, names included, in a stored form.
	// Names that begin with "Weir-" are reserved: headers of a later weir are passed on
	// (law W4).
	Headers map[string]string
}

// Origin is a place in a source: a partition and an offset of a topic, a sequence number
// of a stream, a line of a file. Each part has at most 1,024 bytes.
type Origin struct {
	Source    string // such as the name of the topic, stream, table or file
	Partition string // "" without partitions
	Position  string // such as the offset
}

// longestID is the greatest length of a readable id derived from an origin.
const longestID = 200

// ID returns an id for the message of this origin, such as "orders/0/17": always the same
// for an origin, and different for each origin. An id of more than 200 bytes is hashed:
// "sha256:" and 64 hex digits. The zero Origin has the id "". The ids repeat if the
// source is deleted and created again: see [Origin.IDIn].
func (o Origin) ID() string { return o.IDIn("") }

// IDIn is ID for a source that can be deleted and created again. incarnation differs each
// time, such as the id of a topic or the time at which a stream was created. It becomes
// part of the id: "orders:Q3pX9aVn/0/17". With the incarnation "" IDIn returns ID.
func (o Origin) IDIn(incarnation string) string {
	if o == (Origin{}) {
		return ""
	}
	const special = "/#:"
	b := appendEscaped(nil, o.Source, special)
	if incarnation != "" {
		b = appendEscaped(append(b, ':'), incarnation, special)
	}
	b = appendEscaped(append(b, '/'), o.Partition, special)
	b = appendEscaped(append(b, '/'), o.Position, special)
	if len(b) > longestID {
		sum := sha256.Sum256(b)
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return string(b)
}

// MetaFromContext returns the metadata of the message of an operator's call; ok is false
// outside of such a call, and for elements that are not messages. It must not be changed:
// its maps and slices are shared.
func MetaFromContext(ctx context.Context) (m Meta, ok bool) {
	m, ok = ctx.Value(ctxkey.Message{}).(Meta)
	return m, ok
}

// ContextWithMeta returns a copy of ctx with which [MetaFromContext] returns m, for tests
// and elements that are not messages. For a message, use [NewContext].
func ContextWithMeta(ctx context.Context, m Meta) context.Context {
	return context.WithValue(ctx, ctxkey.Message{}, m)
}
