// Package core is an asynchronous operator as a state machine: slots, order, attempts, outcomes, retries, deadlines, and what
// a checkpoint holds. It has no goroutine and no logger.
//
// # Owner
//
// One goroutine owns a [Machine] and everything in it: its driver. Calls run elsewhere, and what they touch is in package call.
// The core learns of it in [Machine.Turn] only. If user code ends the driver's goroutine, another goroutine takes the core over
// with [Machine.Run]. A driver without another goroutine reads State.Exited.
//
// # Calls
//
// A driver
//
//   - feeds the core: [Machine.Accept] for an element, [Machine.Restore] for an item of a checkpoint or a control element, and
//     [Machine.EndRetries] when no element follows;
//   - lets it work: [Machine.Run] around the loop, [Machine.Turn], and [Machine.Next], which returns when the next turn is due;
//   - carries results away: [Machine.Head] and [Machine.Left];
//   - copies what is in flight for a checkpoint: [Machine.Items];
//   - ends it: [Machine.End], then [Machine.Abandon], [Machine.Ended] for each element that was in flight, and [Machine.Forget];
//   - looks at it: [Machine.State];
//   - reports that time may have passed: [Machine.Away].
//
// The core calls its driver by [Hooks] and Config.Invoke. Calls for workers are in Config.Jobs.
//
// # Features
//
// What is optional hooks into the moments of an element: see moments.go. Each feature is a file, feature_….go, with a constructor
// that adds it to a core:
//
//   - [AddMessages]: elements are messages, which are settled
//   - [AddObserving]: observers and counters
//   - [OrderKeys]: the elements of a key, one after the other
//   - [OwnTimeouts]: a timeout for each element
//   - [AddBatches]: one call for several elements
//   - [AtBackend]: the service that is called says when an attempt may start
//   - [AskBeside], [PrepareBeside]: strategies that may block, and what they want done before a retry
//   - [HandleFailures]: results in place of failures
//   - [AddHandOver]: a sink for failures
//   - [KeepWays]: what became of the attempts of elements that failed or were slow
//   - [LogRetries]: outcomes that had a reason for another attempt
//
// The core compiles, and works, with all of these files deleted (alone_test.go).
//
// # The way of an attempt
//
//	Accept, Turn ─▶ mayStart ─▶ begin ─▶ invoke ─▶ … ─▶ conclude ─▶ decide ─▶ settle | fails | backOff ─▶ … ─▶ mayStart
//
// An element is accepted in Machine.put, an attempt starts in Machine.begin and ends in Machine.endAttempt. "May this attempt start?" is asked in Machine.mayStart: a cancel, the deadline, and then the features.
//
// # The end of an element
//
//   - settle: nothing follows from its last attempt. Its results wait for their turn, or it fails.
//   - fails: a handler may have results in place of the failure (the moment rescue).
//   - giveUp: it has failed. It is handed over (the moment offer), dropped, or fails the run.
//   - complete: it may leave the queue when its turn comes.
//   - Ended: it has ended. Counters, observers and messages learn how.
//   - Left: it leaves its slot.
package core
