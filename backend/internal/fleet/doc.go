// Package fleet is the protocol by which the processes of a fleet share a service's limit
// (law B5) and its state: an outage, a hold or a pause. It has no goroutines and no
// clock: its caller reads and writes the table, and passes the time.
//
// The table is one record of an engine, with an entry for each process. A process
// replaces it by a step:
//
//	read ─▶ Begin ─▶ write, if the version has not changed ─▶ Commit
//
// Each step renews the process's lease on its share, which ends [Lease] after the start
// of the step. A share grows in two steps:
//
//	free permit ─▶ claimed: others count it ─▶ noticed by all others ─▶ used
//
// The rules:
//
//   - The recorded share is never below the number of running calls. A process that must
//     release permits starts no calls, and releases them as its calls end.
//   - A claim is written only if the table's version has not changed, so two processes
//     cannot claim the same permits.
//   - A claim is used when all other members have written since. Each has then recorded
//     its own share after it has seen the claim. So it does not matter which writes a
//     failover of the engine loses, or how long it takes: of two processes that claim the
//     same permits, the later one finds the other's claim, or finds that its own writes
//     were lost.
//   - A member may be dead and never write. Then the write of a witness is enough: a
//     member that had joined before the last write of the silent one.
//   - A process that has just joined uses no permit for [Settling], in which processes
//     record lost entries again.
//   - After the end of its lease a process has no share, and grows from zero.
//   - Another process's entry counts until it has been unchanged for [Lease] plus the
//     longest call of all processes, by the reader's monotonic clock. A reader that has
//     missed steps measures this time anew.
//   - A process that finds that the engine has lost writes marks its entry as stopped,
//     for its lease and the longest call of all. Meanwhile no process grows: a killed
//     process may have had a share that was lost.
//
// The table also has the service's state (law B4):
//
//   - A change of state has a number, and replaces the change before it. A process obeys
//     a change once it has read it. Evidence of its own calls counts only if no other
//     process has changed the state meanwhile. The same holds for a person's order that
//     could not be recorded for the time of a lease.
//   - If the engine has lost a change, a process that knows it records it again.
//   - A time is recorded as the time left at the write. A reader adds the time since its
//     read, and takes the earliest end that it has found. So no process is early.
//   - The right to probe is claimed like a single permit. The claim of a process that
//     does not write counts for [Lease] and [ProbeTime], but not longer than its entry.
//     After a lost probe the process passes the right on to others that need permits. A
//     process without a share may claim it if it has a running call, whose operator can
//     lend its permit to the probe.
//   - A process's part of the ramp is its part of the limit. So all parts add up to the
//     ramp at most.
//
// Permits are divided by need: a process that needs fewer than an equal part gets them,
// and the others share the rest. Surplus permits are divided among the processes that
// need any. If there are fewer permits than processes, they take turns: low tickets come
// first, and a process that has had a permit for at least four seconds gets the highest
// ticket. A turn does not end while a process waits for its part of a rate, or for the
// right to probe. If a process could call for four seconds and does not, its turn ends
// as well.
package fleet
