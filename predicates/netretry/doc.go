// Package netretry names the reasons of failed connections: which errors of package net, of contexts and of connections deserve
// another try, and whether the call may have taken effect.
//
// # Vocabulary
//
// A kind is an event: a connection could not be made, an established connection was lost, or time ran out. The stage
// ([predicates.Stage]) is how far the request had come. Both together make the reason:
//
//	kind            ClientDispatch   Unreported        NetworkTime, ResponseReceived
//	not connected   NotConnected     NotConnected (*)  HopNotConnected
//	lost            NotSent          ConnectionLost    ConnectionLost
//	timed out       NotSent          TimedOut          TimedOut
//
//	reason            non-idempotent calls may be retried
//	NotConnected      yes: no connection, nothing sent
//	NotSent           yes: known to have happened before anything was sent
//	HopNotConnected   no: something else may have been sent before
//	ConnectionLost    no: lost while the call was in flight
//	TimedOut          no: a call that timed out may have been sent, and executed
//
// # Guarantees
//
// A timeout never counts as "no connection", unless it is a timeout of dialing: a label that lets such calls be repeated because no
// socket answered in time repeats calls that took effect.
//
// (*) The error of a dial proves that the request was not sent only if the call consists of this request alone. So it does not prove it
//
//   - after the function reported NetworkTime or ResponseReceived: a function that
//     makes several requests has to report its stage;
//   - inside a *[net/url.Error], which an http.Client returns: it follows
//     redirects, and the POST that was answered with 303 has taken effect, although
//     the connection for the GET after it could not be made. Use
//     httpretry.Transport, which knows.
//
// A refusal (ECONNREFUSED) is the error of a dial only where connect reports it: a datagram was sent before the refusal came
// back. driver.ErrBadConn of database/sql counts as the error of a dial: a driver must not return it if the server may have
// performed the operation. Some do: lib/pq v1.10.9 returns it for connections that end in flight, and database/sql then repeats
// the statement by itself. With such a driver a function whose call must not happen twice reports its stage
// (predicates.ReportStage).
//
// Of errors that a function joins, the error that allows least decides, and an error that is
// not known here does not allow any retry: see predicates.Classifier.
//
// Permanent errors do not get a reason: a host name that does not exist, an address that cannot be parsed, a certificate that is not trusted.
// Neither does context.Canceled, since the caller wanted it.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
//
// # Use
//
//	strategies.ReasonAware(netretry.Classifier[Row](), strategies.BestEffort[Row]())
package netretry
