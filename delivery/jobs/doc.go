// Package jobs runs bulk actions on the messages of an engine: it sends dead letters
// back, removes messages, holds and releases them, and makes them due.
//
//	j, err := jobs.New(engine, jobs.Config{})
//	…
//	job, err := j.Start(ctx, jobs.Spec{
//		Do: store.Merge, Queue: orders.DeadLetters(), To: orders.Name(), Filter: store.Filter{Provider: "bank"}, Rate: 100,
//		By: "ann", Why: "the bank is back",
//	})
//
// # Runners
//
// The engine keeps a job, and any process that has the engine open runs it: each worker
// (delivery.Run) looks for jobs every 20 s, and [Jobs.Run] runs a job at once. A single
// process at a time runs the jobs of a queue, the oldest first: it holds a lock with a
// lease of 30 s. If it dies, another process continues.
//
// # Guarantees
//
//   - Each message is affected once, even if processes are killed at any point: the
//     changes of a step, up to 499 messages and the progress of the job, are one
//     transaction.
//   - A job affects messages that were in its queue when it started. Messages that arrive
//     later, or are redelivered, are left alone. PostgreSQL gives a message its position
//     before its transaction commits. So a message of a transaction that runs at the
//     start of the job may be affected, too, and is not in [Job.Total].
//   - Messages that a worker has at the time of a step are left alone, and counted as
//     skipped. But a purge removes them: when their calls end, the worker stores neither
//     their failures nor their results on this engine (see delivery.Run).
//     [Jobs.CancelKey] also ends these calls. A merge also skips a message whose identity
//     ([store.Identity]) is in the queue To already.
//   - At most [Spec.Rate] messages a second, by the clock of the engine.
//
// # The log
//
// Each start, pause, resume, cancel, rate change and end of a job is a line of a log, in
// the same transaction. Each line has the hash of the line before, so [Jobs.Log] finds a
// line that was changed or removed, even the last. It also compares the records of ended
// jobs with the lines about their ends, and finds a log that ends before the first line
// of a job.
//
// A user who can write to the database can write the log and the jobs anew, or remove
// them all: to notice that, keep the number and hash of a line elsewhere. The records of
// jobs that have not ended are not compared, and neither are orders for backends and
// queues. If the record of the last line is lost, jobs and orders are refused with an
// error that names it.
//
// # Workers
//
// A running worker reports its state every 20 s ([Jobs.Workers]), and adds to the history
// of its queue once a minute ([Jobs.History]). [Jobs.HoldBackend] and its siblings steer
// the services that workers call, and [Jobs.PauseQueue] and [Jobs.HoldKey] the messages
// that workers take; their orders are in the log, too. [Groups] shows the dead letters of
// a queue by similar failures, and [Jobs.KeyStates] the messages of a queue by key.
package jobs
