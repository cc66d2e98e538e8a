// Package core is an asynchronous operator as a state machine: slots, order, attempts, outcomes, retries, deadlines, and what
// a checkpoint holds. It has no goroutine and no logger.
//
// # Owner
//
// One goroutine owns a [Machine] and everything in it: its driver. Calls run elsewhere, and what they touch is in package call.
// The core learns of it in [Machine.Turn] only. If user code ends the driver's goroutine, another one takes the core over
// with [Machine.Run]; a driver that has no other one reads [Machine.Exited].
//
// # Calls
//
// A driver
//
//   - feeds it: [Machine.HasRoom], [Machine.Room] and [Machine.Crowded], [Machine.Accept], [Machine.AcceptControl],
//     [Machine.Restore], [Machine.EndRetries], [Machine.NoneFollows];
//   - lets it work: [Machine.Turn], [Machine.Jobs], and [Machine.Next], which says when the next turn is due;
//   - carries results away: [Machine.Head] and [Machine.Left], and [Machine.Carried] for parts of a message;
//   - lets messages be settled: [Machine.SettleMessages], [Machine.MaySettle], [Machine.GiveBack], [Machine.ComesAgain];
//   - copies what is in flight for a checkpoint: [Machine.Items], [Machine.Numbers];
//   - ends it: [Machine.End], [Machine.EndIfCancelled], [Machine.Failed], [Machine.Failure] and [Machine.FailedIn]; then
//     [Machine.Abandon], [Machine.Describe] and [Machine.Ended] for what was in flight, [Machine.CutSink], [Machine.AwaitSink],
//     [Machine.WasTaken] and [Machine.LastOffer] for what the failure sink has not taken by then, and [Machine.Forget];
//   - looks at it: [Machine.Len], [Machine.Running], [Machine.Counts] and [Machine.Present];
//   - says that time has passed: [Machine.Slept], [Machine.Beside];
//   - lets observers be called: [Machine.IsObserved], [Machine.Report], and [Machine.Gone] and [Machine.Refused] for what only the
//     driver knows.
//
// What the core needs from others is in [Config]: plain values, the user's functions, and [Hooks], which build public errors
// and write logs.
//
// # One place for each
//
// An element is accepted in Machine.put, an attempt starts in Machine.begin and ends in Machine.endAttempt, and an element ends in
// Machine.ended. Observers are called from there (law O1). It leaves the lane of its key in Machine.leaveLane (law K1).
package core
