package netretry_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// An insert, which is not idempotent, is retried only if the error proves that it was not
// sent.
func ExampleClassifier() {
	policy := strategies.ReasonAware(netretry.Classifier[string](), strategies.BestEffort[string]())

	for _, err := range []error{
		&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
		io.ErrUnexpectedEOF,
		context.DeadlineExceeded,
	} {
		d := strategiestest.Decide(policy, predicates.Attempt[string]{Err: err})
		fmt.Printf("retry: %-5t %-26v %-15v %v\n", d.Retry, d.Reason, d.Stage, err)
	}
	// Output:
	// retry: true  CONNECTION_NOT_ESTABLISHED client dispatch dial tcp: connection refused
	// retry: false CONNECTION_LOST_IN_FLIGHT  network time    read tcp: connection reset by peer
	// retry: false CONNECTION_LOST_IN_FLIGHT  network time    unexpected EOF
	// retry: false TIMED_OUT_IN_FLIGHT        network time    context deadline exceeded
}
