package predicates_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

// R9: n is the number of retries already made.
func TestAttemptRetries(t *testing.T) {
	for retries := range 3 {
		assert.Equal(t, retries, (&predicates.Attempt[int]{Number: retries + 1}).Retries())
	}
}

// R15
func TestAttemptValue(t *testing.T) {
	type key struct{}
	a := predicates.Attempt[int]{}
	assert.Nil(t, a.Value(key{}))
	a.Values = context.WithValue(t.Context(), key{}, "robot")
	assert.Equal(t, "robot", a.Value(key{}))
}
