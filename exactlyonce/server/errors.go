package server

import "errors"

var (
	// ErrNoAnswer reports that the attempt that ran ended without an answer: its handler panicked, left or gave up. The request
	// may be repeated with the same id.
	ErrNoAnswer = errors.New("exactlyonce: the attempt that ran ended without an answer")

	// ErrNotDriver reports an answer of a handler that must not answer: another handler has taken over, or its call has ended.
	ErrNotDriver = errors.New("exactlyonce: not the driver of the request")
)
