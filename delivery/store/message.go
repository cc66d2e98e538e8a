package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Message is a message as a store keeps it.
type Message struct {
	// Meta is the metadata. The store sets Meta.Due at the put, by its own clock.
	Meta message.Meta
	// Payload is the encoded value. A store does not look into it.
	Payload []byte
	// Schema describes the encoding, if the codec has a schema: see codec.SchemaOf.
	Schema []byte
	// Cause is why the message is a dead letter; empty in other queues.
	Cause Cause
	// Delay is how long after Put the message is due, at least 0. It is 0 in messages
	// that were taken or listed.
	Delay time.Duration
}

// Cause is why a message is a dead letter. Its text is the stored name. String returns
// the name that people see, which differs for UnsafeToRepeat.
type Cause string

// The causes that weir sets.
const (
	Permanent      Cause = "permanent"       // its error is permanent
	Exhausted      Cause = "exhausted"       // its visit after the last layer failed
	UnsafeToRepeat Cause = "outcome unknown" // a call is unsafe to repeat (asyncop.Failure.UnsafeToRepeat), or has succeeded and its result was rejected
	Undecodable    Cause = "undecodable"     // its codec cannot read the payload, or it is damaged in the store
	Lapsed         Cause = "lapsed"          // its leases ended repeatedly: its workers died, or hung
	Expired        Cause = "expired"         // its deadline has passed, or comes before its next visit
	Refused        Cause = "refused"         // the engine can never take its failure, or a sink the result of an idempotent call ([message.ErrRefused])
)

// unsafeToRepeat is the name that people see for UnsafeToRepeat. The stored name is
// older: workers of earlier versions look for it.
const unsafeToRepeat = "unsafe to repeat"

// String returns the name that people see, such as "unsafe to repeat".
func (c Cause) String() string {
	if c == UnsafeToRepeat {
		return unsafeToRepeat
	}
	return string(c)
}

// CauseNamed returns the cause with a name that people see, or a stored name.
func CauseNamed(name string) Cause {
	if name == unsafeToRepeat {
		return UnsafeToRepeat
	}
	return Cause(name)
}

// Identity distinguishes the messages of a queue. A queue keeps one message of each
// identity. Two puts under one id have the same identity until the first visit of the
// first message has ended, since both lack an origin of the put. Messages that were
// handed over have the origins of their puts, so they are kept apart (law W5).
type Identity struct {
	ID            string
	Visit, Merges int
	Put           string // message.Meta.Put
}

// Identity returns the identity of m in its queue.
func (m *Message) Identity() Identity {
	return Identity{m.Meta.ID, m.Meta.Visit, m.Meta.Merges, m.Meta.Put}
}

// Validate returns an error for a message that every store must refuse.
func (m *Message) Validate() error {
	switch {
	case m.Meta.ID == "":
		return errors.New("store: a message without an id (Meta.ID)")
	case m.Delay < 0:
		return fmt.Errorf("store: message %q: the delay %v is negative", guard.Shown(m.Meta.ID), m.Delay)
	case m.Meta.Visit < 0 || m.Meta.Merges < 0 || m.Meta.Attempts < 0:
		return fmt.Errorf("store: message %q: visit %d, merges %d and attempts %d must not be negative",
			guard.Shown(m.Meta.ID), m.Meta.Visit, m.Meta.Merges, m.Meta.Attempts)
	}
	return nil
}

// Clone returns a deep copy of m.
func (m *Message) Clone() Message {
	c := *m
	c.Meta.Reasons = slices.Clone(m.Meta.Reasons)
	c.Meta.Timeline = slices.Clone(m.Meta.Timeline)
	c.Meta.Headers = maps.Clone(m.Meta.Headers)
	c.Payload = bytes.Clone(m.Payload)
	c.Schema = bytes.Clone(m.Schema)
	return c
}
