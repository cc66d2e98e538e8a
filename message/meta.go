package message

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
)

// Meta describes a message beside its value: its origin, and its history so far (law D6).
// It is replaced at each hop, never appended to. [Meta.ToHeaders] is the form in which it
// travels, JSON the form in which it is stored.
type Meta struct {
	// ID names the message in all queues that it passes. On an engine with leases, a
	// queue keeps one message of each ID, Put, Visit and Merges, so a hand-over that is
	// repeated after a crash has no effect while the first copy is there. A put sets the
	// id, or it is random. Other sources derive it from the origin ([Origin.ID]). At most
	// 1,024 bytes.
	ID string
	// Key is the key by which messages are ordered or taken in turn, or "". At most 1,024
	// bytes; they need not be text.
	Key string
	// Origin is where the message was first seen.
	Origin Origin

	// Put is the origin of the put: where the message was when it was first taken. Queues
	// set it, and pass it on with the message to layers, dead letters and other queues.
	// There it distinguishes the message from a later put under the same id (law W5). It
	// is "" until the message is taken. At most 1,024 bytes. Its stored name is Weir-Put.
	Put string

	// Visit is the number of the visit, which is a passage through an operator with its
	// attempts. Sources return 1 more than what is stored: the number of the last visit
	// whose failure was handed over, or 0. So a visit does not count if the message was
	// released or nacked in it, or if its worker died.
	Visit int
	// Attempts counts the calls that were begun in all visits before this one.
	Attempts int
	// FirstFailure and LastFailure are when visits failed; zero without a failure.
	FirstFailure, LastFailure time.Time
	// Due is when the message may be delivered, at the earliest (law D3); zero means at
	// any time.
	Due time.Time
	// Deadline is the time after which the message is useless; zero means never. A queue
	// does not deliver it after that (delivery.Deadline).
	Deadline time.Time
	// LastError is the message of the error of the last failure. A stored form has its
	// first 4,096 bytes.
	LastError string
	// Reasons are the names of the reasons why calls were retried or failed, each once, in
	// the order in which they first occurred. A stored form has the last 64.
	Reasons []string
	// Timeline lists the calls of all visits. A stored form has the first 8 and the last
	// 24.
	Timeline []Step
	// UnsafeToRepeat is true if a failed call may have taken effect, is not idempotent,
	// and no predicate asked for a repeat (asyncop.Failure.UnsafeToRepeat). It is also
	// true if a call has succeeded, is not idempotent, and its result was rejected, for
	// example by a sink that can never take it ([NoteUnsafeToRepeat]). It stays true
	// until a person sends the message back nevertheless, or a server answers the request
	// with a refusal that it keeps for all attempts. Its stored names are
	// Weir-Outcome-Unknown and outcomeUnknown.
	UnsafeToRepeat bool
	// Request is the id under which that call was made, in the form of exactlyonce.ID, or
	// "". The next visit uses it again, so the server finds the call. A call may send a
	// request in each of its steps (exactlyonce.ID.Step). Behind the id, exactlyonce/caller
	// appends ";only=1" if only the request of this step may have taken effect: if the
	// server refuses this request in a later visit, nothing of the call is in doubt. At
	// most 1,024 bytes.
	Request string
	// Remembered is the time until which the server remembers that call, or zero if it
	// does not. Until then, the call may be repeated under the same id.
	Remembered time.Time
	// Provider is the external system that was chosen for the message, or "": later calls
	// go there as well. At most 1,024 bytes.
	Provider string
	// Outage names the outage of a backend that made the last visit fail, if the message
	// waits in a layer: the visit, how much earlier than Due the message may be delivered
	// when the backend recovers, and the backend, such as "2;9m59s;payments". Queues set
	// it. At most 1,024 bytes. Its stored name is Weir-Outage.
	Outage string
	// Merges counts the returns from the dead letters.
	Merges int
	// MergeJob is the id of the job (package jobs) that returned it last, or 0 if it is
	// not known. The line of the log with this number has who started the job, and why.
	// Its stored name is Weir-Merge-Job.
	MergeJob int

	// Headers are the user's headers. At most 1 MiB, names included, in a stored form.
	// Names that begin with "Weir-" are reserved: such a header was written by a later
	// version of weir, and is passed on (law W4).
	Headers map[string]string
}

// Origin is a place in a source: a partition and an offset of a topic, a sequence number
// of a stream, a line of a file. Each part has at most 1,024 bytes.
type Origin struct {
	Source    string // such as the name of the topic, stream, table or file
	Partition string // "" without partitions
	Position  string // such as the offset
}

// longestID is the length up to which an id derived from an origin is readable.
const longestID = 200

// ID returns an id for the message of this origin, such as "orders/0/17": the same for
// the same origin, and different for different origins. An id of more than 200 bytes is
// hashed: "sha256:" and 64 hex digits. The zero Origin has the id "". If the source can
// be deleted and created again, its positions repeat, and so do these ids: see
// [Origin.IDIn].
func (o Origin) ID() string { return o.IDIn("") }

// IDIn is ID for a source that can be deleted and created again. incarnation is different
// each time, such as the id of a topic or the time at which a stream was created:
// "orders:Q3pX9aVn/0/17". With the incarnation "" it is ID.
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

// MetaFromContext returns the metadata of the message that a function of an operator is
// called for; ok is false outside of a call, and for elements that are not messages. It
// must not be changed: the maps and slices in it are shared.
func MetaFromContext(ctx context.Context) (m Meta, ok bool) {
	m, ok = ctx.Value(ctxkey.Message{}).(Meta)
	return m, ok
}

// ContextWithMeta returns a copy of ctx with which [MetaFromContext] returns m. It is for
// tests, and for elements that are not messages. For a message, use [NewContext].
func ContextWithMeta(ctx context.Context, m Meta) context.Context {
	return context.WithValue(ctx, ctxkey.Message{}, m)
}
