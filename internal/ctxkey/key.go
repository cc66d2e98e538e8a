// Package ctxkey has the keys under which the context of an attempt answers to other packages of the house, without an allocation, and
// to none outside of it.
package ctxkey

// Message is the key of the history of a message: package delivery reads it, and the context of an
// operator's attempt answers it without a context of its own. The value is a message.Meta.
type Message struct{}

// Stage is the key under which an attempt answers to package predicates: it reports stages.
type Stage struct{}

// Borrow is the key of a Borrower: a function that has found an answer without a call
// reports this to its attempt.
type Borrow struct{}

// Borrower is an attempt.
type Borrower interface {
	// Borrow reports that the attempt gets its outcome without a call of its own.
	Borrow()
}

// Members finds the contexts of the members, a []context.Context, in the context of a call for many elements: a request tracker
// looks for them, and links no operator.
type Members struct{}

// Timeline is the key of an element's timeline in the context of a failure sink. The value is a
// []observe.Step, which must not be changed.
type Timeline struct{}
