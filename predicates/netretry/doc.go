// Package netretry classifies failed connections: which errors of package net, of
// contexts and of connections deserve another try, and whether the call may have taken
// effect.
//
// # Vocabulary
//
// A kind is an event: a connection could not be made, an established connection was lost,
// or time ran out. The stage ([predicates.Stage]) is how far the request had come. Both
// together make the reason:
//
//	kind            ClientDispatch   Unreported        NetworkTime, ResponseReceived
//	not connected   NotConnected     NotConnected (*)  HopNotConnected
//	lost            NotSent          ConnectionLost    ConnectionLost
//	timed out       NotSent          TimedOut          TimedOut
//
//	reason            non-idempotent calls may be retried
//	NotConnected      yes: no connection, so the request was not sent
//	NotSent           yes: the connection failed before the request was sent
//	HopNotConnected   no: an earlier request may have been sent
//	ConnectionLost    no: lost while the call was in flight
//	TimedOut          no: a call that timed out may have been sent, and executed
//
// # Guarantees
//
// A timeout does not count as "not connected", except a timeout of dialing: after another
// timeout, the call may have taken effect.
//
// (*) The error of a dial proves that the request was not sent only if it is the only
// request of the call. It is not a proof
//
//   - after the function reported NetworkTime or ResponseReceived: a function that
//     makes several requests has to report its stage;
//   - inside a *[net/url.Error], which an http.Client returns: it follows
//     redirects, and a POST that was answered with 303 has taken effect, although
//     the connection for the following GET failed. Use
//     httpretry.Transport, which reports the requests.
//
// A refusal (ECONNREFUSED) is the error of a dial only if connect reports it: a datagram
// was sent before the refusal came back. driver.ErrBadConn of database/sql counts as the
// error of a dial: a driver must not return it if the server may have performed the
// operation. Some do: lib/pq v1.10.9 returns it for connections that end in flight, and
// database/sql then repeats the statement by itself. With such a driver, report the stage
// (predicates.ReportStage) in a function whose call must not happen twice.
//
// If a function joins errors, the error that allows least decides, and an error that is
// not known here does not allow any retry: see predicates.Classifier.
//
// Permanent errors do not get a reason: a host name that does not exist, an address that
// cannot be parsed, a certificate that is not trusted. Neither does context.Canceled,
// since the caller has cancelled the call.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Use
//
//	strategies.ReasonAware(netretry.Classifier[Row](), strategies.BestEffort[Row]())
package netretry
