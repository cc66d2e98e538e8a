package couchbase_test

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/couchbase"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// upsert is an element that reports what it calls.
type upsert struct {
	couchbase.Request
	key string
}

// A write, which must not happen twice, meets what can happen to it.
func ExampleClassifier() {
	policy := strategies.ReasonAware(couchbase.Classifier[string](nil), strategies.BestEffort[string]())
	write := upsert{couchbase.Request{Service: couchbase.KV, Command: 0x01}, "k"}
	lost := errors.New("connection reset by peer")

	for _, err := range []error{
		predicates.WithReason(lost, couchbase.SocketNotAvailable),
		predicates.WithReason(lost, couchbase.SocketClosedWhileInFlight),
		&couchbase.KVError{Command: write.Command, Status: couchbase.Locked},
		&couchbase.KVError{Command: write.Command, Status: couchbase.NotMyVBucket},
		&couchbase.KVError{Command: write.Command, Status: 0x02}, // exists
	} {
		fmt.Println(strategiestest.Decide(policy, predicates.Attempt[string]{Input: write, Number: 4, Err: err}))
	}
	// Output:
	// retry after 8ms (SOCKET_NOT_AVAILABLE)
	// no retry: refused (SOCKET_CLOSED_WHILE_IN_FLIGHT)
	// retry after 8ms (KV_LOCKED)
	// retry after 100ms (KV_NOT_MY_VBUCKET)
	// no retry: final
}
