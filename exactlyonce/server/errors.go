package server

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/exactlyonce"
)

var (
	// ErrNoAnswer reports that the attempt that ran ended without an answer: its handler
	// panicked, left or gave up. The request may be repeated with the same id.
	ErrNoAnswer = errors.New("exactlyonce: the attempt that ran ended without an answer")

	// errNotDriver reports an answer of a handler after another has taken over, or after
	// its call has ended.
	errNotDriver = fmt.Errorf("exactlyonce: not the driver of the request: %w", exactlyonce.ErrInProgress)
)
