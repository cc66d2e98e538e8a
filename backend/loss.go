package backend

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/couchbase"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
)

// losses are the reasons for which a call says that the service is overloaded or away.
var losses = predicates.ReasonSet{}.With(
	netretry.NotConnected, netretry.HopNotConnected, netretry.NotSent, netretry.ConnectionLost, netretry.TimedOut,
	httpretry.RequestTimeout, httpretry.TooManyRequests, httpretry.BadGateway, httpretry.ServiceUnavailable, httpretry.GatewayTimeout,
	grpcretry.DeadlineExceeded, grpcretry.ResourceExhausted, grpcretry.Unavailable,
	couchbase.SocketNotAvailable, couchbase.ServiceNotAvailable, couchbase.NodeNotAvailable, couchbase.KVTemporaryFailure,
	couchbase.SocketClosedWhileInFlight, couchbase.SearchTooManyRequests,
	predicates.CircuitBreakerOpen,
)

// ofError finds the reasons of errors for which the operator has none.
var ofError = predicates.Classifiers(predicates.Named[struct{}](), httpretry.Classifier[struct{}]())

// isLoss reports whether an outcome says that the service is overloaded or away. The methods of an error may panic.
func isLoss(o *gate.Evidence) (lost bool) {
	switch {
	case !o.Reason.IsZero() && losses.Has(o.Reason):
		return true
	case o.Err == nil:
		return false
	}
	defer func() { _ = recover() }()
	if errors.Is(o.Err, context.DeadlineExceeded) {
		return true
	}
	reason, found := ofError(&predicates.Attempt[struct{}]{Err: o.Err})
	return found && losses.Has(reason)
}

// pushback returns for how long the server wants no call; 0: it says nothing.
func pushback(o *gate.Evidence) (d time.Duration) {
	if o.Pushback > 0 || o.Err == nil {
		return max(0, o.Pushback)
	}
	defer func() { _ = recover() }()
	d, _ = decision.PushbackOf(&predicates.Attempt[struct{}]{Err: o.Err})
	return max(0, d)
}
