// Package ctxkey has the keys of context values that packages of weir share but users
// cannot read. The context of an attempt returns these values without an allocation.
package ctxkey

// Message is the key of the history of a message, which package delivery reads. The value
// is a message.Meta.
type Message struct{}

// Delivery is the key of the delivery of a message. The value is a message.Delivery.
type Delivery struct{}

// Stage is the key with which package predicates reports stages to an attempt.
type Stage struct{}

// Borrow is the key of a Borrower: a function that has found an answer without a call
// reports this to its attempt.
type Borrow struct{}

// Borrower is an attempt.
type Borrower interface {
	// Borrow reports that the attempt gets its outcome without a call of its own.
	Borrow()
}

// Members is the key of the contexts of the members, a []context.Context, in the context
// of a call for many elements. A request tracker reads them without importing the
// operator.
type Members struct{}

// Tracked is the key of the [TrackedElement] in the contexts of an element that a request
// tracker has numbered.
type Tracked struct{}

// TrackedElement is an element that a request tracker has numbered. It records which
// requests of the element may have taken effect, over all its attempts. If the element is
// a message, these include the requests in doubt of earlier visits. It is safe for
// concurrent use.
type TrackedElement interface {
	// Carried returns the id of the latest request if the element is a message that keeps
	// the id for its next visit, otherwise "".
	Carried() string
	// NoteRefused records that the server keeps a refusal as its answer to the request of
	// a step, so that no attempt of the request has an effect.
	NoteRefused(step string)
	// NoteOthers records that the element has requests in doubt whose servers recognise
	// them by something other than the tracker's ids.
	NoteOthers()
	// AllRefused reports whether the servers have refused all requests that may have
	// taken effect.
	AllRefused() bool
}

// Numbered is the key in the context of a request that has an id of a tracker. The value
// is true.
type Numbered struct{}

// Outage is the key of the backend whose outage made an element fail, in the context of a
// failure sink. The value is the name of the backend, a string.
type Outage struct{}

// Timeline is the key of an element's timeline in the context of a failure sink. The
// value is a []observe.Step, which must not be changed.
type Timeline struct{}
