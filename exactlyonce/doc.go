// Package exactlyonce lets a call that may be repeated take effect once.
//
// If an answer gets lost on its way back, the caller repeats the request. With an [ID],
// the same in every attempt, the server finds the earlier attempt and gives its answer
// again.
//
// # Vocabulary
//
//   - A client is an incarnation of a calling program: 128 random bits. See [Client].
//   - A sequence number counts the operations of a client, from 1. In a stream it belongs
//     to an element.
//   - A step distinguishes requests with the same sequence number.
//   - An attempt is a sending of a request. Attempts differ only in their attempt number.
//   - The first incomplete number promises that the client does not repeat requests below
//     it.
//   - A record is the server's note that a request runs, or its answer.
//
// # Callers and servers
//
//   - Package [github.com/weirflow/weir/exactlyonce/caller] numbers the elements of a
//     stream and sends the ids.
//   - Package [github.com/weirflow/weir/exactlyonce/server] decides whether a request
//     runs. It keeps its records in memory, or in a database ([Records]), stored in the
//     transaction of the effect ([Store]).
//   - Package [github.com/weirflow/weir/exactlyonce/keys] is a server for clients that
//     send an idempotency key without ids.
//
// # Concurrency
//
// Everything here is safe for concurrent use unless its documentation says otherwise.
//
// # Sources
//
// Kudu's design document "RPC Retry and Failover" and its ResultTracker; RIFL (Lee et
// al., SOSP 2015).
package exactlyonce
