package netretry

import "github.com/weirflow/weir/predicates"

// The reasons of [Classifier].
var (
	// NotConnected: no connection could be made, so the request was not sent.
	NotConnected = predicates.NewReason("CONNECTION_NOT_ESTABLISHED", true, false)

	// NotSent: the connection failed, or time ran out, before the request was sent.
	NotSent = predicates.NewReason("REQUEST_NOT_SENT", true, false)

	// HopNotConnected: a connection could not be made, but an earlier request may have
	// been sent over another.
	HopNotConnected = predicates.NewReason("HOP_NOT_CONNECTED", false, false)

	// ConnectionLost: the connection ended while the call was in flight.
	ConnectionLost = predicates.NewReason("CONNECTION_LOST_IN_FLIGHT", false, false)

	// TimedOut: time ran out while the call was in flight.
	TimedOut = predicates.NewReason("TIMED_OUT_IN_FLIGHT", false, false)
)

// Reasons returns all reasons of this package.
func Reasons() []predicates.Reason {
	return []predicates.Reason{NotConnected, NotSent, HopNotConnected, ConnectionLost, TimedOut}
}
