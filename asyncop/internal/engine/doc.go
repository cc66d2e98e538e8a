// Package engine is an asynchronous operator as a state machine: slots, order, attempts, outcomes, retries, deadlines, and what
// a checkpoint holds. It has no goroutine and no logger.
//
// # Owner
//
// One goroutine owns an [Engine] and everything in it: its driver. Calls run elsewhere, and what they touch is in package call.
// The engine learns of it in [Engine.Turn] only. If user code ends the driver's goroutine, another one takes the engine over
// with [Engine.Run]; a driver that has no other one reads [Engine.Exited].
//
// # Calls
//
// A driver
//
//   - feeds it: [Engine.HasRoom], [Engine.Room] and [Engine.Crowded], [Engine.Accept], [Engine.AcceptControl],
//     [Engine.Restore], [Engine.EndRetries], [Engine.NoneFollows];
//   - lets it work: [Engine.Turn], [Engine.Jobs], and [Engine.Next], which says when the next turn is due;
//   - carries results away: [Engine.Head] and [Engine.Left], and [Engine.Carried] for parts of a message;
//   - lets messages be settled: [Engine.SettleMessages], [Engine.MaySettle], [Engine.GiveBack], [Engine.ComesAgain];
//   - copies what is in flight for a checkpoint: [Engine.Items], [Engine.Numbers];
//   - ends it: [Engine.End], [Engine.EndIfCancelled], [Engine.Failed], [Engine.Failure] and [Engine.FailedIn]; then
//     [Engine.Abandon], [Engine.Describe] and [Engine.Ended] for what was in flight, [Engine.CutSink], [Engine.AwaitSink],
//     [Engine.WasTaken] and [Engine.LastOffer] for what the failure sink has not taken by then, and [Engine.Forget];
//   - looks at it: [Engine.Len], [Engine.Running], [Engine.Counts], [Engine.Present], [Engine.Blocked];
//   - says that time has passed: [Engine.Slept], [Engine.Beside];
//   - lets observers be called: [Engine.IsObserved], [Engine.Report], and [Engine.Gone] and [Engine.Refused] for what only the
//     driver knows.
//
// What the engine needs from others is in [Config]: plain values, the user's functions, and [Hooks], which build public errors
// and write logs.
//
// # One place for each
//
// An element is accepted in Engine.put, an attempt starts in Engine.begin and ends in Engine.endAttempt, and an element ends in
// Engine.ended. Observers are called from there (law O1). It leaves the lane of its key in Engine.leaveLane (law K1).
package engine
