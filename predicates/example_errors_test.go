package predicates_test

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/weirflow/weir/predicates"
)

type httpError struct{ Status int }

func (e *httpError) Error() string { return fmt.Sprintf("http status %d", e.Status) }

// Retry only errors from which the server may recover meanwhile.
func Example_errors() {
	retry := predicates.AllOf(
		predicates.AnyOf(
			predicates.ErrorIs(io.ErrUnexpectedEOF),
			predicates.ErrorAs(func(e *httpError) bool { return e.Status >= 500 }),
		),
		predicates.Not(predicates.ErrorIs(context.Canceled)),
	)

	for _, err := range []error{
		&httpError{Status: 503},
		&httpError{Status: 404},
		fmt.Errorf("reading body: %w", io.ErrUnexpectedEOF),
		errors.Join(context.Canceled, io.ErrUnexpectedEOF),
	} {
		fmt.Printf("%-5v %q\n", retry(err), err)
	}
	// Output:
	// true  "http status 503"
	// false "http status 404"
	// true  "reading body: unexpected EOF"
	// false "context canceled\nunexpected EOF"
}
