package couchbase_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/couchbase"
)

// R3: one retry repeats all requests of the call.
func TestJoinedErrors(t *testing.T) {
	kv := func(s couchbase.Status) error { return &couchbase.KVError{Command: 0x01, Status: s} }
	socket := func(r predicates.Reason) error { return predicates.WithReason(io.EOF, r) }
	lost := &predicates.StageError{Stage: predicates.NetworkTime, Err: io.EOF}
	unsent := &predicates.StageError{Stage: predicates.ClientDispatch, Err: io.EOF}
	byName := func(r predicates.Reason) predicates.Reason { return predicates.NewReason(r.Name(), false, false) }
	internal := kv(0x84)
	for _, tt := range []struct {
		name string
		a, b error
		want predicates.Reason
	}{
		{"both locked", kv(couchbase.Locked), kv(couchbase.Locked), couchbase.KVLocked},
		{"always and on request", kv(couchbase.NotMyVBucket), kv(couchbase.Locked), couchbase.KVLocked},
		{"and lost", kv(couchbase.Locked), socket(couchbase.SocketClosedWhileInFlight), couchbase.SocketClosedWhileInFlight},
		{"and lost, by its stage", kv(couchbase.Locked), lost, byName(couchbase.KVLocked)},
		{"and not sent", kv(couchbase.Locked), unsent, couchbase.KVLocked},
		{"and not listed", kv(couchbase.Locked), internal, byName(couchbase.KVLocked)},
		{
			"no socket, and lost", socket(couchbase.SocketNotAvailable), socket(couchbase.SocketClosedWhileInFlight),
			couchbase.SocketClosedWhileInFlight,
		},
		{"and unknown", kv(couchbase.Locked), io.EOF, byName(couchbase.KVLocked)},
	} {
		for _, err := range []error{errors.Join(tt.a, tt.b), errors.Join(tt.b, tt.a)} {
			got, ok := couchbase.Classifier[int](nil)(&predicates.Attempt[int]{Err: err})
			assert.True(t, ok, tt.name)
			assert.Equal(t, tt.want, got, "%s: %v", tt.name, err)
		}
	}
}

// A response to one request does not remove the doubt about another request of the call.
func TestReasonsOfACallInDoubt(t *testing.T) {
	for _, err := range []error{
		&couchbase.KVError{Command: 0x01, Status: couchbase.TemporaryFailure},
		&couchbase.KVError{Command: 0x01, Status: couchbase.NotMyVBucket}, // always retried
		predicates.WithReason(io.EOF, couchbase.SocketNotAvailable),
		errors.Join(
			&couchbase.KVError{Command: 0x01, Status: couchbase.Locked},
			&couchbase.KVError{Command: 0x01, Status: couchbase.Locked}),
	} {
		classify := couchbase.Classifier[int](nil)
		alone, _ := classify(&predicates.Attempt[int]{Err: err})
		assert.True(t, alone.AllowsNonIdempotentRetry(), "%v", err)
		beside, ok := classify(&predicates.Attempt[int]{Err: err, Stage: predicates.NetworkTime, InDoubt: true})
		assert.True(t, ok)
		assert.Equal(t, predicates.NewReason(alone.Name(), false, false), beside, "%v", err)
	}
}
