// Package fleet is the protocol by which the processes of a fleet share the limit of a
// service (law B5), and its state: an outage, a hold or a pause. It has no goroutines and
// no clock: its caller reads and writes the table, and passes the time.
//
// The table is one record of an engine, with an entry for each process. A process
// replaces the record by a step:
//
//	read ─▶ Begin ─▶ write, if the version has not changed ─▶ Commit
//
// Each step renews the lease of the process on its share, which ends [Lease] after the
// start of the step. A share grows in two steps:
//
//	free permit ─▶ claimed: others count it ─▶ noticed by all others ─▶ used
//
// The rules:
//
//   - The recorded share is never below the number of running calls. A process that must
//     release permits stops starting calls, and releases the permits as its calls end.
//   - A claim is written only if the version of the table has not changed, so two
//     processes cannot claim the same permits.
//   - A claim is used when all other members have written since. Each of them has then
//     recorded its own share after it has seen the claim. So it does not matter which
//     writes a failover of the engine loses, or how long it takes: of two processes that
//     claim the same permits, the later one finds the claim of the other, or finds that
//     its own writes were lost.
//   - A member may be dead and never write. Then it is enough that a witness has written:
//     a member that had joined before the last write of the silent one.
//   - A process that has just joined uses no permit for [Settling], in which processes
//     whose entries were lost record them again.
//   - After the end of its lease a process has no share, and grows from zero.
//   - The entry of another process counts until it has been unchanged for [Lease] plus the
//     longest call of all processes, by the monotonic clock of the reader. A reader that
//     has missed steps measures this time anew.
//   - A process that finds that the engine has lost writes marks its entry as stopped,
//     for its lease and the longest call of all. Meanwhile no process grows: a process
//     that was killed may have had a share that was lost.
//
// The table also has the state of the service (law B4):
//
//   - A change of the state has a number, and replaces the change before it. A process
//     obeys a change as soon as it has read it. Evidence of its own calls counts only if
//     no other process has changed the state meanwhile. An order of a person that could not
//     be recorded for the time of a lease lapses in the same case.
//   - A process that knows a later change than the table has, because the engine has lost
//     writes, records it again.
//   - A time is recorded as the time that is left at the write. A reader adds the time
//     since its read, and takes the earliest end that it has found. So no process is
//     early.
//   - The right to probe is claimed like a permit, of which there is one. The claim of a
//     process that does not write counts for [Lease] and [ProbeTime], but not longer than
//     its entry. After a lost probe
//     the process passes the right on to others that need permits. A process without a
//     share may claim the right if it has a running call, whose operator can lend its
//     permit to the probe.
//   - A process has the part of the ramp that it has of the limit. So the parts of all
//     add up to the ramp at most.
//
// Permits are divided by need: a process that needs fewer permits than an equal part gets
// as many as it needs, and the others share the rest. Permits that are left over are
// divided among the processes that need any. If there are fewer permits than processes,
// the processes take turns: a process that has had a permit for at least four seconds
// gets the highest ticket, and low tickets come first. While the service is down, it gets
// that ticket when it passes on the right to probe.
package fleet
