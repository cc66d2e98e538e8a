package backend

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
)

// signal is the meaning of an attempt's end for the backend (laws B4 and B6).
type signal uint8

const (
	answered  signal = iota // the service works; failures unrelated to load are answers
	throttled               // the service works, and asks for fewer calls
	lost                    // the service is overloaded or unavailable
)

// throttles are the reasons of throttled calls.
var throttles = predicates.ReasonSet{}.With(
	httpretry.TooManyRequests, grpcretry.ResourceExhausted,
	predicates.NewReason("SEARCH_TOO_MANY_REQUESTS", true, false), // ext/couchbase
	predicates.NewReason("HBASE_THROTTLED", true, false),          // ext/hbase
)

// losses are the reasons of lost calls.
var losses = predicates.ReasonSet{}.With(
	netretry.NotConnected, netretry.HopNotConnected, netretry.NotSent, netretry.ConnectionLost, netretry.TimedOut,
	httpretry.RequestTimeout, httpretry.BadGateway, httpretry.ServiceUnavailable, httpretry.GatewayTimeout,
	httpretry.Overloaded,
	grpcretry.DeadlineExceeded, grpcretry.Unavailable,
	predicates.CircuitBreakerOpen,
).With(couchbaseLosses...).With(hbaseLosses...)

// couchbaseLosses are reasons of ext/couchbase, another module, whose tests compare them.
var couchbaseLosses = []predicates.Reason{
	predicates.NewReason("SOCKET_NOT_AVAILABLE", true, false),
	predicates.NewReason("SERVICE_NOT_AVAILABLE", true, false),
	predicates.NewReason("NODE_NOT_AVAILABLE", true, false),
	predicates.NewReason("KV_TEMPORARY_FAILURE", true, false),
	predicates.NewReason("SOCKET_CLOSED_WHILE_IN_FLIGHT", false, false),
	predicates.NewReason("PIPELINE_OVERLOADED", true, false),
	predicates.NewReason("UNAMBIGUOUS_TIMEOUT", true, false),
}

// hbaseLosses are like couchbaseLosses.
var hbaseLosses = []predicates.Reason{
	predicates.NewReason("HBASE_REGION_TOO_BUSY", true, false),
	predicates.NewReason("HBASE_CALL_QUEUE_TOO_BIG", true, false),
	predicates.NewReason("HBASE_CALL_DROPPED", true, false),
	predicates.NewReason("HBASE_SERVER_NOT_RUNNING", true, false),
	predicates.NewReason("HBASE_SERVER_STOPPED", true, false),
}

// ofError finds the reasons of errors that the operator has not classified.
var ofError = predicates.Classifiers(predicates.Named[struct{}](), httpretry.Classifier[struct{}]())

// signalOf classifies the end of an attempt, and returns the delay that the service
// demands, or 0. A demand without a known reason is a throttle.
func signalOf(o *gate.Evidence) (s signal, demanded time.Duration) {
	if o.Err == nil && o.Reason.IsZero() && o.Pushback <= 0 {
		return answered, 0
	}
	demanded = pushback(o)
	s = signalOfReason(o.Reason)
	if s == answered && o.Err != nil {
		s = signalOfError(o.Err)
	}
	if s == answered && demanded > 0 {
		s = throttled
	}
	return s, demanded
}

func signalOfReason(r predicates.Reason) signal {
	switch {
	case r.IsZero():
		return answered
	case throttles.Has(r):
		return throttled
	case losses.Has(r):
		return lost
	}
	return answered
}

// signalOfError classifies an error without a reason. Its methods may panic.
func signalOfError(err error) (s signal) {
	defer func() { _ = recover() }()
	if errors.Is(err, context.DeadlineExceeded) {
		return lost
	}
	return signalOfReason(reasonOf(err))
}

// reasonOf returns an error's reason if the operator has not named it. The error's
// methods may panic.
func reasonOf(err error) predicates.Reason {
	reason, _ := ofError(&predicates.Attempt[struct{}]{Err: err})
	return reason
}

var unsent = predicates.ReasonSet{}.With(netretry.NotConnected, netretry.HopNotConnected, netretry.NotSent)

// wasNotSent reports whether a lost call was not sent.
func wasNotSent(o *gate.Evidence) (is bool) {
	if !o.Reason.IsZero() || o.Err == nil {
		return unsent.Has(o.Reason)
	}
	defer func() { _ = recover() }()
	return unsent.Has(reasonOf(o.Err))
}

func pushback(o *gate.Evidence) (d time.Duration) {
	if o.Pushback > 0 || o.Err == nil {
		return max(0, o.Pushback)
	}
	defer func() { _ = recover() }()
	d, _ = decision.PushbackOf(&predicates.Attempt[struct{}]{Err: o.Err})
	return max(0, d)
}
