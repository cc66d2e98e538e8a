// Package netretry classifies failed connections: which errors of package net, contexts
// and connections deserve another try, and whether the call may have taken effect.
//
// # Vocabulary
//
// A kind is an event: a connection could not be made, a connection was lost, or time ran
// out. With the stage ([predicates.Stage]) it makes the reason:
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
// Only a timeout of dialing counts as "not connected": after another timeout, the call
// may have taken effect.
//
// (*) The error of a dial proves that the request was not sent only if it is the only
// request of the call. It is not a proof
//
//   - after the function reported NetworkTime or ResponseReceived, as a function of
//     several requests must;
//   - inside a *[net/url.Error] of an http.Client: a POST that was answered with 303 has
//     taken effect, although the connection for the following GET failed. Use
//     httpretry.Transport, which reports the requests.
//
// A refusal (ECONNREFUSED) is the error of a dial only if connect reports it: a datagram
// was sent before. driver.ErrBadConn of database/sql counts as the error of a dial: a
// driver must not return it if the server may have performed the operation. Some do:
// lib/pq v1.10.9 returns it for connections that end in flight, and database/sql then
// repeats the statement. With such a driver, report the stage (predicates.ReportStage) of
// a call that must not happen twice.
//
// Permanent errors do not get a reason: an unknown host name, an invalid address, an
// untrusted certificate. Neither does context.Canceled.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Use
//
//	strategies.ReasonAware(netretry.Classifier[Row](), strategies.BestEffort[Row]())
package netretry
