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
)

// What becomes of an insert, which must not happen twice: it is retried only where
// the error proves that it was not sent.
func ExampleClassifier() {
	policy := strategies.ReasonAware(netretry.Classifier[string](), strategies.BestEffort[string]())

	for _, err := range []error{
		&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
		io.ErrUnexpectedEOF,
		context.DeadlineExceeded,
	} {
		a := &predicates.Attempt[string]{Number: 1, Err: err, Remaining: predicates.NoDeadline}
		d := policy.Decide(context.Background(), a, strategies.Situation{})
		fmt.Printf("%-7v %-26v %-15v %v\n", d.Verdict, d.Reason, a.Stage, err)
	}
	// Output:
	// retried CONNECTION_NOT_ESTABLISHED client dispatch dial tcp: connection refused
	// refused CONNECTION_LOST_IN_FLIGHT  network time    read tcp: connection reset by peer
	// refused CONNECTION_LOST_IN_FLIGHT  network time    unexpected EOF
	// refused TIMED_OUT_IN_FLIGHT        network time    context deadline exceeded
}
