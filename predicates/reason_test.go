package predicates_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates"
)

var (
	reasonA = predicates.NewReason("A", true, false)
	reasonB = predicates.NewReason("B", false, false)
	reasonC = predicates.NewReason("C", true, true)

	rejected    = predicates.NewRejection("REJECTED")
	rejectedToo = predicates.NewRejection("REJECTED_TOO")
)

// R22
func TestReasonProperties(t *testing.T) {
	var none predicates.Reason
	tests := []struct {
		reason        predicates.Reason
		name, text    string
		nonIdempotent bool
		always, zero  bool
	}{
		{none, "", "(none)", false, false, true},
		{reasonA, "A", "A", true, false, false},
		{reasonB, "B", "B", false, false, false},
		{reasonC, "C", "C", true, true, false},
		{predicates.Unknown, "UNKNOWN", "UNKNOWN", false, false, false},
		{predicates.CircuitBreakerOpen, "CIRCUIT_BREAKER_OPEN", "CIRCUIT_BREAKER_OPEN", true, false, false},
		{rejected, "REJECTED", "REJECTED", true, false, false},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.name, tt.reason.Name())
		assert.Equal(t, tt.text, tt.reason.String())
		assert.Equal(t, tt.text, fmt.Sprintf("%v", tt.reason))
		assert.Equal(t, tt.nonIdempotent, tt.reason.AllowsNonIdempotentRetry(), tt.text)
		assert.Equal(t, tt.always, tt.reason.AlwaysRetry(), tt.text)
		assert.Equal(t, tt.zero, tt.reason.IsZero(), tt.text)
		assert.Equal(t, tt.reason == rejected, tt.reason.IsRejection(), tt.text)
	}
}

func TestReasonsAreEqualByValue(t *testing.T) {
	again := predicates.NewReason("A", true, false)
	assert.True(t, again == reasonA)
	assert.False(t, predicates.NewReason("A", false, false) == reasonA)
	assert.False(t, predicates.NewReason("A", true, true) == reasonA)
	assert.False(t, reasonB == reasonA)
	assert.False(t, predicates.NewReason("REJECTED", true, false) == rejected)
	assert.LessOrEqual(t, unsafe.Sizeof(reasonA), unsafe.Sizeof(uintptr(0)), "a reason costs a pointer")
}

func TestNewReasonAndNewRejection_Panics(t *testing.T) {
	assert.PanicsWithValue(t, "predicates: NewReason: empty name", func() { predicates.NewReason("", true, false) })
	assert.PanicsWithValue(t, "predicates: NewRejection: empty name", func() { predicates.NewRejection("") })
	assert.PanicsWithValue(t, "predicates: NewReason: X: alwaysRetry without allowsNonIdempotentRetry",
		func() { predicates.NewReason("X", false, true) })
}

func TestReasonJSON(t *testing.T) {
	type record struct {
		Reason predicates.Reason            `json:"reason"`
		Counts map[predicates.Reason]int    `json:"counts"`
		None   predicates.Reason            `json:"none"`
		Set    predicates.ReasonSet         `json:"set"`
		Empty  predicates.ReasonSet         `json:"empty"`
		Names  map[string]predicates.Reason `json:"names,omitempty"`
	}
	out, err := json.Marshal(record{
		Reason: reasonC,
		Counts: map[predicates.Reason]int{reasonA: 3},
		Set:    predicates.ReasonSet{}.With(reasonB).With(reasonA),
	})
	require.NoError(t, err)
	assert.Equal(t, `{"reason":"C","counts":{"A":3},"none":"","set":["A","B"],"empty":[]}`, string(out))

	var in record
	require.NoError(t, json.Unmarshal(out, &in))
	assert.Equal(t, "C", in.Reason.Name())
	assert.False(t, in.Reason.AllowsNonIdempotentRetry(), "a name that was read allows nothing")
	assert.False(t, in.Reason.AlwaysRetry())
	assert.True(t, in.None.IsZero())
	assert.True(t, in.Empty.IsEmpty())
	assert.Equal(t, 2, in.Set.Len())

	assert.Error(t, json.Unmarshal([]byte(`{"reason":1}`), &in))
	assert.Error(t, json.Unmarshal([]byte(`{"set":"A"}`), &in))
}

func TestWithReason(t *testing.T) {
	require.NoError(t, predicates.WithReason(nil, reasonA))
	err := predicates.WithReason(errBusy, reasonA)
	require.EqualError(t, err, "A: busy")
	require.ErrorIs(t, err, errBusy)
}
