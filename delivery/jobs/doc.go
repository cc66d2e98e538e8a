// Package jobs does things to many messages of an engine: it sends dead letters back, removes messages, holds, releases
// and makes them due.
//
//	j, err := jobs.New(engine, jobs.Config{})
//	…
//	job, err := j.Start(ctx, jobs.Spec{
//		Do: jobs.Merge, Queue: orders.DeadLetters(), To: orders.Name(), Filter: store.Filter{Provider: "bank"}, Rate: 100,
//		By: "ann", Why: "the bank is back",
//	})
//
// # Who runs a job
//
// A job is kept in the engine. Any process that has the engine open runs it: each worker (delivery.Run) looks for jobs every 20 s, and
// [Jobs.Run] runs one at once. One process at a time runs the jobs of a queue, the oldest first: it holds a lock with a lease of 30 s. If
// it dies, another one goes on.
//
// # Guarantees
//
//   - Each message is affected once, also if processes are killed at any point: up to 500 messages and the progress of the job are changed in
//     one transaction.
//   - A job affects messages that were in its queue when it started. Those that arrive later, or come back, are left alone. PostgreSQL gives
//     a message its place before its transaction commits, so a message that a transaction of that moment puts may be affected, too, and is
//     not in [Job.Total].
//   - What a worker has at that moment is left alone and counted as skipped, except that a purge removes it all the same. A merge also skips a
//     message whose id, visit and merges the other queue has already.
//   - At most [Spec.Rate] messages a second, by the clock of the engine.
//
// # The log
//
// Each start, pause, resume, cancel and end of a job is a line of a log, in the same transaction. Lines are only appended. Each has the
// hash of the one before, so [Jobs.Log] finds a line that was changed or removed, also the last. Whoever can write to the database can
// write the whole log anew: to notice that, keep the hash of a line elsewhere.
//
// # Workers
//
// While a worker runs it says every 20 s what it does: [Jobs.Workers] lists that. [Jobs.HoldBackend] and its siblings steer the services that
// workers call; what they do is in the log, too.
package jobs
