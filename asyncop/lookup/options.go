package lookup

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Option changes how long a [Function] keeps entries. Options panic if a value is invalid.
type Option func(*rules)

// rules say what is kept, and for how long.
type rules struct {
	found   time.Duration // 0: as long as the cache likes
	missing time.Duration // of negative entries; unlike the rest: as found
	errs    time.Duration // 0: errors are not kept
	which   predicates.ExceptionPredicate
}

// alike as the time of negative entries stands for that of others.
const alike = time.Duration(-1)

// WithTTL keeps results for d, from the end of their load. By default the cache decides. It panics unless d is positive.
func WithTTL(d time.Duration) Option {
	mustBePositive("WithTTL", d)
	return func(r *rules) { r.found = d }
}

// WithMissTTL keeps the absence of results for d; 0: not at all. The default is as long as results are kept. It panics
// if d is negative.
func WithMissTTL(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("lookup: WithMissTTL: negative time: %v", d))
	}
	return func(r *rules) { r.missing = d }
}

// WithErrorTTL keeps those errors for d that satisfy which. By default none is kept, and a panic never is. It panics unless
// d is positive, and if which is nil; predicates.HasException stands for all errors.
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
