package couchbase_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10/memd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/couchbase"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

// gocb returns ErrRequestCanceled when the context of a call ends. The operator has ended
// the attempt before, so its outcome is the attempt timeout, which has a reason.
func TestClassifier_AttemptTimeout(t *testing.T) {
	reason, _ := classify(&asyncop.AttemptTimeoutError{Limit: time.Second, Attempt: 1})
	assert.Equal(t, netretry.TimedOut, reason)
	synctest.Test(t, func(t *testing.T) {
		get := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
			if asyncop.AttemptFromContext(ctx) == 1 {
				<-ctx.Done()
				return "", &gocb.KeyValueError{InnerError: gocb.ErrRequestCanceled}
			}
			return key, nil
		})
		op := asyncop.OrderedWaitWithRetry(get, time.Minute, 1,
			strategies.ReasonAware(couchbase.Classifier[string](), nil).Idempotent(), asyncop.WithAttemptTimeout(time.Second))
		for key, err := range op.Results(slices.Values([]string{"lhr"})) {
			require.NoError(t, err)
			assert.Equal(t, "lhr", key)
		}
		assert.EqualValues(t, 1, op.Stats().AttemptTimeouts)
	})
}

// The answer to an Insert is lost, and the repetition is refused: the document exists.
// The failure is still in doubt, because it may be the document of the first attempt.
func TestClassifier_InsertAfterALostAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		policy   *strategies.Policy[string]
		attempts int
		reason   predicates.Reason
		unsafe   bool
	}{
		"not idempotent": {strategies.ReasonAware(couchbase.Classifier[string](), nil), 1, netretry.TimedOut, true},
		"idempotent": {
			strategies.ReasonAware(couchbase.Classifier[string](), nil).Idempotent(), 2, predicates.NewRejection("KV_STATUS_0x02"), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			insert := asyncop.Blocking(func(ctx context.Context, _ string) (string, error) {
				if asyncop.AttemptFromContext(ctx) == 1 {
					return "", &gocb.TimeoutError{InnerError: gocb.ErrAmbiguousTimeout, Opaque: "9", LastDispatchedTo: "10.0.0.1:11210"}
				}
				return "", keyValue(memd.StatusKeyExists, gocb.ErrDocumentExists)
			})
			var failures []asyncop.Failure[string]
			op := asyncop.OrderedWaitWithRetry(insert, time.Minute, 1, tt.policy,
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
					failures = append(failures, f)
					return nil
				}))
			for _, err := range op.Results(slices.Values([]string{"order 17"})) {
				require.NoError(t, err)
			}
			require.Len(t, failures, 1)
			assert.Equal(t, tt.attempts, failures[0].Attempts)
			assert.Equal(t, tt.reason, failures[0].Reason)
			assert.True(t, failures[0].InDoubt)
			assert.Equal(t, tt.unsafe, failures[0].UnsafeToRepeat())
		})
	}
}
