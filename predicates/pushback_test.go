package predicates_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// answer is a result that may carry a demand.
type answer struct {
	delay   time.Duration
	demands bool
}

func (a answer) RetryPushback() (time.Duration, bool) { return a.delay, a.demands }

func TestPushbackOfErrors(t *testing.T) {
	for _, delay := range []time.Duration{decision.Never, 0, time.Second} {
		for name, err := range wrappings(predicates.WithPushback(errBusy, delay)) {
			got, ok := decision.PushbackOf(failedWith(err))
			assert.True(t, ok, name)
			assert.Equal(t, delay, got, name)
		}
	}
	_, ok := decision.PushbackOf(failedWith(errBusy))
	assert.False(t, ok)
	_, ok = decision.PushbackOf(endedWith("x"))
	assert.False(t, ok)
}

func TestPushbackOfResults(t *testing.T) {
	demand, nothing := func(d time.Duration) answer { return answer{d, true} }, answer{time.Hour, false}
	tests := []struct {
		results []answer
		want    time.Duration
		ok      bool
	}{
		{nil, 0, false},
		{[]answer{nothing}, 0, false},
		{[]answer{demand(0)}, 0, true},
		{[]answer{demand(2), nothing, demand(3), demand(1)}, 3, true},
		{[]answer{demand(2), demand(-5), demand(3)}, decision.Never, true},
	}
	for _, tt := range tests {
		got, ok := decision.PushbackOf(&predicates.Attempt[answer]{Results: tt.results})
		assert.Equal(t, tt.ok, ok, "%v", tt.results)
		assert.Equal(t, tt.want, got, "%v", tt.results)
	}
	_, ok := decision.PushbackOf(&predicates.Attempt[answer]{Results: []answer{demand(1)}, Err: errBusy})
	assert.False(t, ok, "the outcome is the error")
	got, ok := decision.PushbackOf(&predicates.Attempt[any]{Results: []any{"x", demand(4)}})
	assert.True(t, ok)
	assert.Equal(t, time.Duration(4), got)
}

func TestWithPushback(t *testing.T) {
	require.NoError(t, predicates.WithPushback(nil, time.Second))
	require.EqualError(t, predicates.WithPushback(errBusy, time.Second), "busy (the server asks to wait 1s)")
	err := predicates.WithPushback(errBusy, -time.Hour)
	require.EqualError(t, err, "busy (the server asks not to retry)")
	require.ErrorIs(t, err, errBusy)
	delay, _ := decision.PushbackOf(failedWith(err))
	assert.Equal(t, decision.Never, delay)
}
