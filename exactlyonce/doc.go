// Package exactlyonce lets a call that may be repeated take effect once.
//
// An answer can get lost on its way back. The caller then cannot know whether its request
// took effect, and repeats it. With an [ID], which is the same in every attempt, the
// server finds the earlier attempt and gives its answer again.
//
// # Vocabulary
//
//   - A client is an incarnation of a calling program: 128 random bits. See [Client].
//   - A sequence number counts the operations of a client, from 1. In a stream it belongs
//     to an element.
//   - A step names a request among several that are made for the same sequence number.
//   - An attempt is a sending of a request. Attempts of a request differ in their attempt
//     number only.
//   - The first incomplete number promises that the client does not repeat requests below
//     it.
//   - A record is the knowledge of the server about a request: that it runs, or its
//     answer.
//
// # Callers and servers
//
// They do not import each other. This package has the types that both use, and that a
// handler and a store of records need.
//
//   - The caller is package [github.com/weirflow/weir/exactlyonce/caller]: it numbers the
//     elements of a stream and sends the ids.
//   - The server is package [github.com/weirflow/weir/exactlyonce/server]: it finds the
//     earlier attempts of a request and decides whether it runs. It keeps its records in
//     memory, or in a database ([Records]), stored in the transaction of the effect
//     ([Store]).
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
