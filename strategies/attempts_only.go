package strategies

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// AttemptStrategy is a reason-aware strategy that declares to depend on the number
// of attempts alone. Only such a one can serve where FLIP-232 is spoken: see
// [WithoutReasons].
type AttemptStrategy[OUT any] interface {
	ReasonStrategy[OUT]

	// CanRetry and BackoffTime are those of [AsyncRetryStrategy]; Decide does
	// nothing else than ask them.
	CanRetry(currentAttempts int) bool
	BackoffTime(currentAttempts int) time.Duration
}

// ByAttempts returns what a FLIP-232 strategy decides as a reason-aware strategy:
// for whatever reason, CanRetry and BackoffTime answer, asked with the number of
// the attempt. It does not look at idempotence: what FLIP-232 retries, it retries.
// Predicates and jitter of s are not part of it; [PolicyOf] takes everything.
// ByAttempts panics if s is nil.
func ByAttempts[OUT any](s AsyncRetryStrategy[OUT]) AttemptStrategy[OUT] {
	mustNotBeNil("ByAttempts", s)
	return &attempts[OUT]{s}
}

type attempts[OUT any] struct {
	flip AsyncRetryStrategy[OUT]
}

var _ AttemptStrategy[any] = (*attempts[any])(nil)

func (s *attempts[OUT]) CanRetry(n int) bool             { return s.flip.CanRetry(n) }
func (s *attempts[OUT]) BackoffTime(n int) time.Duration { return s.flip.BackoffTime(n) }
func (s *attempts[OUT]) Unwrap() any                     { return s.flip }

func (s *attempts[OUT]) Decide(_ context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	if !s.flip.CanRetry(a.Number) {
		return DoNotRetry(), nil
	}
	base := s.flip.BackoffTime(a.Number)
	if base < 0 {
		return Action{}, fmt.Errorf("strategies: %T: negative BackoffTime(%d): %v", s.flip, a.Number, base)
	}
	return RetryAfter(base), nil
}

// WithoutReasons returns s as a FLIP-232 strategy that retries what predicate asks
// for; nil means nothing. It takes strategies that depend on attempts alone and no
// others: what depends on reasons would lose them on the way. WithoutReasons
// panics if s is nil.
func WithoutReasons[OUT any](
	s AttemptStrategy[OUT], predicate predicates.AsyncRetryPredicate[OUT],
) AsyncRetryStrategy[OUT] {
	mustNotBeNil("WithoutReasons", s)
	return withoutReasons[OUT]{AttemptStrategy: s, predicate: predicate}
}

type withoutReasons[OUT any] struct {
	AttemptStrategy[OUT]
	predicate predicates.AsyncRetryPredicate[OUT]
}

func (s withoutReasons[OUT]) Unwrap() any { return s.AttemptStrategy }

func (s withoutReasons[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] { return s.predicate }
