package predicates_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

var (
	errBusy   = errors.New("busy")
	errClosed = errors.New("closed")
	errOther  = errors.New("other")
)

type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("status %d", e.code) }

// codes is not comparable: errors.Is must not panic for it.
type codes []int

func (codes) Error() string { return "codes" }

// actingError has its own Is and As, and does not wrap another error.
type actingError struct{ code int }

func (actingError) Error() string        { return "acting" }
func (actingError) Is(target error) bool { return target == errBusy }
func (s actingError) As(target any) bool {
	p, ok := target.(**statusError)
	if ok {
		*p = &statusError{code: s.code}
	}
	return ok
}

// wrappings are the ways in which an error reaches a predicate.
func wrappings(err error) map[string]error {
	return map[string]error{
		"bare":         err,
		"wrapped":      fmt.Errorf("lookup: %w", err),
		"twice":        fmt.Errorf("attempt: %w", fmt.Errorf("lookup: %w", err)),
		"joined first": errors.Join(err, errOther),
		"joined last":  errors.Join(errOther, err),
		"many verbs":   fmt.Errorf("%w and %w", errOther, err),
		"deep":         fmt.Errorf("a: %w", errors.Join(errOther, fmt.Errorf("b: %w", errors.Join(errOther, err)))),
	}
}

// chains are the wrappings of err without another joined error.
func chains(err error) map[string]error {
	return map[string]error{
		"bare":        err,
		"wrapped":     fmt.Errorf("lookup: %w", err),
		"twice":       fmt.Errorf("attempt: %w", fmt.Errorf("lookup: %w", err)),
		"joined only": fmt.Errorf("lookup: %w", errors.Join(nil, err)),
	}
}

func TestHasException(t *testing.T) {
	assert.False(t, predicates.HasException(nil))
	assert.True(t, predicates.HasException(errBusy))
	assert.True(t, predicates.HasException(context.Canceled))
}

func TestErrorIs(t *testing.T) {
	busyOrClosed := predicates.ErrorIs(errBusy, errClosed)
	for _, target := range []error{errBusy, errClosed} {
		for name, err := range wrappings(target) {
			t.Run(fmt.Sprintf("%v/%s", target, name), func(t *testing.T) {
				assert.True(t, busyOrClosed(err))
				assert.False(t, predicates.ErrorIs(io.EOF)(err))
			})
		}
	}
	assert.False(t, busyOrClosed(nil))
	assert.False(t, busyOrClosed(errOther))
	assert.False(t, busyOrClosed(errors.New("busy")), "same text, other error")
	assert.True(t, busyOrClosed(actingError{}), "an Is method counts")
	assert.False(t, predicates.ErrorIs(codes{1})(codes{1}), "incomparable errors are never the same, and never a panic")
}

func TestErrorIsKeepsItsTargets(t *testing.T) {
	targets := []error{errBusy}
	busy := predicates.ErrorIs(targets...)
	targets[0] = errClosed
	assert.True(t, busy(errBusy))
	assert.False(t, busy(errClosed))
}

func TestErrorIsPanics(t *testing.T) {
	assert.PanicsWithValue(t, "predicates: ErrorIs: no targets", func() { predicates.ErrorIs() })
	assert.PanicsWithValue(t, "predicates: ErrorIs: nil target at index 0", func() { predicates.ErrorIs(nil) })
	assert.PanicsWithValue(t, "predicates: ErrorIs: nil target at index 1", func() { predicates.ErrorIs(errBusy, nil) })
}

func TestErrorAs(t *testing.T) {
	for name, err := range wrappings(&statusError{code: 503}) {
		t.Run(name, func(t *testing.T) {
			assert.True(t, predicates.ErrorAs[*statusError]()(err))
			assert.False(t, predicates.ErrorAs[*net.OpError]()(err))
			assert.True(t, predicates.ErrorAs[error]()(err))
		})
	}
	assert.False(t, predicates.ErrorAs[*statusError]()(nil))
	assert.False(t, predicates.ErrorAs[*statusError]()(errOther))
	assert.True(t, predicates.ErrorAs[*statusError]()(actingError{}), "an As method counts")
	assert.True(t, predicates.ErrorAs[codes]()(fmt.Errorf("x: %w", codes{1})), "a type that is no pointer")
	assert.True(t, predicates.ErrorAs[net.Error]()(os.ErrDeadlineExceeded), "an interface")
}

func TestErrorAsCondition(t *testing.T) {
	unavailable := predicates.ErrorAs(func(e *statusError) bool { return e.code == 503 })
	for name, err := range wrappings(&statusError{code: 503}) {
		t.Run(name, func(t *testing.T) { assert.True(t, unavailable(err)) })
	}
	for name, err := range wrappings(&statusError{code: 404}) {
		t.Run("404 "+name, func(t *testing.T) { assert.False(t, unavailable(err)) })
	}
	assert.False(t, unavailable(nil))
	assert.False(t, unavailable(errOther))
	assert.True(t, unavailable(actingError{code: 503}))
	assert.False(t, unavailable(errors.Join(&statusError{code: 404}, &statusError{code: 503})), "the first counts")

	many := predicates.ErrorAs(func(e *statusError) bool { return e.code > 400 }, func(e *statusError) bool { return e.code < 500 })
	assert.True(t, many(&statusError{code: 404}))
	assert.False(t, many(&statusError{code: 503}), "all conditions count")

	timedOut := predicates.ErrorAs(func(e net.Error) bool { return e.Timeout() })
	assert.True(t, timedOut(context.DeadlineExceeded))
	assert.False(t, timedOut(&net.DNSError{IsNotFound: true}))
}

func TestErrorAsPanicsWithoutCondition(t *testing.T) {
	assert.PanicsWithValue(t, "predicates: ErrorAs: nil condition at index 0", func() {
		predicates.ErrorAs[*statusError](nil)
	})
}
