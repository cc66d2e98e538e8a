package predicates_test

import (
	"errors"
	"fmt"
	"io"

	"github.com/weirflow/weir/predicates"
)

var (
	busy      = predicates.NewReason("BUSY", true, false)          // refused, so not executed
	connLost  = predicates.NewReason("CONN_LOST", false, false)    // may have been executed
	wrongNode = predicates.NewReason("WRONG_NODE", true, true)     // callers should never see this error
	notYet    = predicates.NewReason("NOT_YET_THERE", true, false) // known to the application only
)

// Errors and codes come first, then predicates of results. A classifier of your own is a
// function. Outcomes that no classifier recognises are accepted.
func ExampleClassifiers() {
	status := func(a *predicates.Attempt[string]) (code int, ok bool) {
		e, ok := errors.AsType[*httpError](a.Err)
		if !ok {
			return 0, false
		}
		return e.Status, true
	}
	serverSays := map[int]bool{599: true}

	classify := predicates.Classifiers(
		predicates.ByException[string](predicates.ErrorIs(io.ErrUnexpectedEOF), connLost),
		predicates.ByCode(status, map[int]predicates.Reason{421: wrongNode, 429: busy, 400: {}}),
		func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
			code, ok := status(a)
			return busy, ok && serverSays[code]
		},
		predicates.ByResult(predicates.EmptyResult[string], notYet),
	)

	for _, a := range []predicates.Attempt[string]{
		{Err: fmt.Errorf("reading: %w", io.ErrUnexpectedEOF)},
		{Err: &httpError{Status: 421}},
		{Err: &httpError{Status: 429}},
		{Err: &httpError{Status: 400}},
		{Err: &httpError{Status: 599}},
		{Err: errors.New("disk full")},
		{Results: []string{}},
		{Results: []string{"a row"}},
	} {
		if reason, _ := classify(&a); reason.IsZero() {
			fmt.Println("accepted:", a.Err, a.Results)
		} else {
			fmt.Println(reason, reason.AllowsNonIdempotentRetry(), reason.AlwaysRetry())
		}
	}
	// Output:
	// CONN_LOST false false
	// WRONG_NODE true true
	// BUSY true false
	// accepted: http status 400 []
	// BUSY true false
	// accepted: disk full []
	// NOT_YET_THERE true false
	// accepted: <nil> [a row]
}
