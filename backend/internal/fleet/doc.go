// Package fleet is the protocol by which the processes of a fleet share the limit of a
// service (law B5). It has no goroutines and no clock: its caller reads and writes the
// table, and passes the time.
//
// The table is one record of an engine, with an entry for each process. A process
// replaces the record by a step:
//
//	read ─▶ Begin ─▶ write, if the version has not changed ─▶ Commit
//
// Each step renews the lease of the process on its share, which ends [Lease] after the
// start of the step. The rules:
//
//   - The recorded share is never below the number of running calls. A process that must
//     release permits stops starting calls, and releases the permits as its calls end.
//   - A share grows only by a write that is conditional on the version of the table, so
//     two processes cannot take the same permits.
//   - After the end of its lease a process has no share, and grows from zero.
//   - The entry of another process counts until it has not changed for its lease and its
//     longest call, by the monotonic clock of the reader.
//   - A process grows only if its steps have succeeded for a [Settling] time. So after a
//     failover of the engine that lost writes, all processes can record their shares
//     again before a share grows.
//   - A process that finds that the engine has lost writes marks its entry as stopped,
//     for its lease and the longest call of all. Meanwhile no process grows.
//
// Permits are divided by need: a process that needs fewer permits than an equal part gets
// as many as it needs, and the others share the rest. Permits that are left over are divided
// among the processes that need any.
package fleet
