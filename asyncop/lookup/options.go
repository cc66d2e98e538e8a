package lookup

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Option changes how long a [Function] keeps entries. Options panic if a value is
// invalid.
type Option func(*rules)

// rules define which outcomes are kept, and how long.
type rules struct {
	found   time.Duration // 0 if the cache decides
	missing time.Duration // of negative entries; alike means like results
	errs    time.Duration // 0 if errors are not kept
	which   predicates.ExceptionPredicate
}

// alike makes negative entries live as long as results.
const alike = time.Duration(-1)

// WithTTL keeps results for d from the end of their load. By default the cache decides.
// It panics unless d is positive.
func WithTTL(d time.Duration) Option {
	mustBePositive("WithTTL", d)
	return func(r *rules) { r.found = d }
}

// WithMissTTL keeps negative entries for d, or not at all if d is 0. By default they are
// kept like results. It panics if d is negative.
func WithMissTTL(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("lookup: WithMissTTL: negative time: %v", d))
	}
	return func(r *rules) { r.missing = d }
}

// WithErrorTTL keeps errors that satisfy which for d. By default errors are not kept. A
// panic is never kept. predicates.HasException selects all errors. It panics unless d is
// positive, and if which is nil.
func WithErrorTTL(d time.Duration, which predicates.ExceptionPredicate) Option {
	mustBePositive("WithErrorTTL", d)
	if which == nil {
		panic("lookup: WithErrorTTL: nil predicate")
	}
	return func(r *rules) { r.errs, r.which = d, which }
}

func mustBePositive(option string, d time.Duration) {
	if d <= 0 {
		panic(fmt.Sprintf("lookup: %s: nonpositive time: %v", option, d))
	}
}
