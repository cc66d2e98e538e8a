package grpcretry_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/netretry"
)

// code, statusError and statusCode imitate codes.Code, the errors of gRPC and
// status.Code.
type code uint32

type statusError code

func (e statusError) Error() string { return fmt.Sprintf("rpc error: code = %d", uint32(e)) }

func statusCode(err error) code {
	if e, ok := errors.AsType[statusError](err); ok {
		return code(e)
	}
	return 2 // unknown
}

// Literally the table of the package documentation.
func TestReasonsByCode(t *testing.T) {
	type row struct{ sent, unsent predicates.Reason }
	table := map[code]row{
		3:  {grpcretry.InvalidArgument, predicates.Reason{}},
		4:  {grpcretry.DeadlineExceeded, netretry.NotSent},
		5:  {grpcretry.NotFound, predicates.Reason{}},
		6:  {grpcretry.AlreadyExists, predicates.Reason{}},
		7:  {grpcretry.PermissionDenied, predicates.Reason{}},
		8:  {grpcretry.ResourceExhausted, predicates.Reason{}},
		9:  {grpcretry.FailedPrecondition, predicates.Reason{}},
		14: {grpcretry.Unavailable, netretry.NotSent},
		16: {grpcretry.Unauthenticated, predicates.Reason{}},
	}
	c := grpcretry.Classifier[string](statusCode)
	for n := range code(20) {
		for _, stage := range []predicates.Stage{
			predicates.Unreported, predicates.ClientDispatch, predicates.NetworkTime, predicates.ResponseReceived,
		} {
			want := table[n].sent
			if stage == predicates.ClientDispatch {
				want = table[n].unsent
			}
			err := fmt.Errorf("get: %w", statusError(n))
			reason, ok := c(&predicates.Attempt[string]{Err: err, Stage: stage})
			assert.Equal(t, !want.IsZero(), ok, "code %d, %v", n, stage)
			assert.Equal(t, want, reason, "code %d, %v", n, stage)
			if stage != predicates.ClientDispatch {
				assert.Equal(t, reason.IsRejection(), reason.AllowsNonIdempotentRetry(), "code %d, %v", n, stage)
			}
		}
	}
	for _, a := range []predicates.Attempt[string]{{Err: io.EOF}, {Results: []string{"x"}}, {}} {
		_, ok := c(&a)
		assert.False(t, ok)
	}
	assert.Len(t, grpcretry.Reasons(), len(table))
	for _, row := range table {
		assert.Contains(t, grpcretry.Reasons(), row.sent)
	}
	assert.PanicsWithValue(t, "grpcretry: Code: nil function", func() { grpcretry.Classifier[string, code](nil) })
}

func TestCode_OwnTable(t *testing.T) {
	aborted := predicates.NewReason("ABORTED", true, false)
	c := predicates.Classifiers(
		predicates.ByCode(grpcretry.Code[string](statusCode), map[code]predicates.Reason{10: aborted, 8: {}}),
		grpcretry.Classifier[string](statusCode))
	for n, want := range map[statusError]predicates.Reason{10: aborted, 8: {}, 14: grpcretry.Unavailable} {
		reason, ok := c(&predicates.Attempt[string]{Err: n})
		assert.True(t, ok)
		assert.Equal(t, want, reason)
	}
}

// A6, with several values as in gRPC-Go.
func TestWithPushback(t *testing.T) {
	tests := []struct {
		values []string
		want   time.Duration
		ok     bool
	}{
		{nil, 0, false},
		{[]string{}, 0, false},
		{[]string{"0"}, 0, true},
		{[]string{"1500"}, 1500 * time.Millisecond, true},
		{[]string{"2147483647"}, 2147483647 * time.Millisecond, true},
		{[]string{"2147483648"}, decision.Never, true},
		{[]string{"-1"}, decision.Never, true},
		{[]string{""}, decision.Never, true},
		{[]string{"soon"}, decision.Never, true},
		{[]string{"1.5"}, decision.Never, true},
		{[]string{"1", "2"}, decision.Never, true},
	}
	for _, tt := range tests {
		delay, ok := grpcretry.Pushback(tt.values)
		assert.Equal(t, tt.ok, ok, "%q", tt.values)
		assert.Equal(t, tt.want, delay, "%q", tt.values)

		require.NoError(t, grpcretry.WithPushback(nil, tt.values))
		err := grpcretry.WithPushback(statusError(14), tt.values)
		assert.EqualValues(t, 14, statusCode(err), "the code is still there")
		delay, ok = decision.PushbackOf(&predicates.Attempt[string]{Err: err})
		assert.Equal(t, tt.ok, ok, "%q", tt.values)
		assert.Equal(t, tt.want, delay, "%q", tt.values)
	}
}

// R3: one retry repeats all calls of the function.
func TestJoinedErrors(t *testing.T) {
	unsent := func(c code) error {
		return &predicates.StageError{Stage: predicates.ClientDispatch, Err: statusError(c)}
	}
	aborted := predicates.NewReason("ABORTED", true, false)
	weakened := func(r predicates.Reason) predicates.Reason { return predicates.NewReason(r.Name(), false, false) }
	own := decision.EachError(predicates.ByCode( // as a policy does
		grpcretry.Code[string](statusCode), map[code]predicates.Reason{10: aborted, 14: grpcretry.Unavailable}))
	shipped := grpcretry.Classifier[string](statusCode)
	for name, tt := range map[string]struct {
		c    predicates.Classifier[string]
		a, b error
		want predicates.Reason
	}{
		"unsent and lost":         {shipped, unsent(14), statusError(14), grpcretry.Unavailable},
		"unsent and timed out":    {shipped, unsent(14), statusError(4), grpcretry.DeadlineExceeded},
		"unsent, then timed out":  {shipped, unsent(4), statusError(14), grpcretry.Unavailable},
		"unsent and unknown":      {shipped, unsent(14), io.EOF, weakened(netretry.NotSent)},
		"unsent and not found":    {shipped, unsent(14), statusError(5), netretry.NotSent},
		"unsent and aborted":      {shipped, unsent(14), statusError(10), weakened(netretry.NotSent)},
		"unsent twice":            {shipped, unsent(14), unsent(4), netretry.NotSent},
		"own table, and lost":     {own, statusError(10), statusError(14), grpcretry.Unavailable},
		"own table, and unknown":  {own, statusError(10), io.EOF, weakened(aborted)},
		"own table, twice":        {own, statusError(10), statusError(10), aborted},
		"own table, and unlisted": {own, statusError(10), statusError(5), weakened(aborted)},
	} {
		for _, err := range []error{errors.Join(tt.a, tt.b), errors.Join(tt.b, tt.a), fmt.Errorf("call: %w: %w", tt.a, tt.b)} {
			a := &predicates.Attempt[string]{Err: err}
			reason, ok := tt.c(a)
			assert.True(t, ok, "%s: %v", name, err)
			assert.Equal(t, tt.want, reason, "%s: %v", name, err)
			assert.Equal(t, name == "unsent twice", a.Stage == predicates.ClientDispatch, "%s: %v", name, err)
		}
	}
}

// A message that is too large is too large for a retry, too.
func TestClassifier_TooLarge(t *testing.T) {
	c := grpcretry.Classifier[string](statusCode)
	for text, permanent := range map[string]bool{
		"trying to send message larger than max (9 vs. 4)":                   true, // Go
		"grpc: received message larger than max (9 vs. 4)":                   true,
		"grpc: received message after decompression larger than max 4":       true,
		"grpc: message too large (9 bytes)":                                  true,
		"SERVER: Received message larger than max (9 vs. 4)":                 true, // C++, Python
		"gRPC message exceeds maximum size 4: 9":                             true, // Java
		"Attempted to send message with a size larger than 4":                true, // JavaScript
		"Received message exceeds the maximum configured message size.":      true, // .NET
		"message size 9 is larger than configured max 4":                     true, // Connect
		"message size 9 exceeds sendMaxBytes 4":                              true,
		"quota exceeded":                                                     false,
		"stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM": false,
		"too many requests":                                                  false,
	} {
		reason, ok := c(&predicates.Attempt[string]{Err: fmt.Errorf("%s: %w", text, statusError(8)), Idempotent: true})
		assert.True(t, ok, text)
		assert.Equal(t, permanent, reason.IsZero(), text)
	}
	reason, _ := c(&predicates.Attempt[string]{Err: fmt.Errorf("message larger than max: %w", statusError(14))})
	assert.Equal(t, grpcretry.Unavailable, reason, "another code")
}

// The refusal of one call does not remove the doubt about another.
func TestRejectedAfterAnotherCall(t *testing.T) {
	reason, ok := grpcretry.Classifier[string](statusCode)(&predicates.Attempt[string]{Err: statusError(6), InDoubt: true})
	assert.True(t, ok)
	assert.Equal(t, predicates.Reason{}, reason)
}
