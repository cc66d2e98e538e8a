// Package core is an asynchronous operator as a state machine: slots, order, attempts,
// retries, deadlines, and the contents of a checkpoint. It has no goroutine, no channel
// and no logger.
//
// # Owner
//
// One goroutine owns a [Machine] and everything in it: its driver's. Calls run on other
// goroutines; the state that they share with the core is in package call. The core reads
// it in [Machine.Step] only.
//
// # Calls
//
// A driver
//
//   - feeds elements to the core: [Machine.Accept]; [Machine.Restore] for an item of a checkpoint and
//     for a control element; [Machine.EndRetries] when the input has ended;
//   - lets it work: [Machine.Step], and [Machine.Next], which returns when the next step is due;
//   - takes the results: [Machine.Head] and [Machine.Left];
//   - copies the elements in flight for a checkpoint: [Machine.Items];
//   - ends it: [Machine.End], then [Machine.Abandon], [Machine.Ended] for each element that was in
//     flight, and [Machine.Forget];
//   - reads its state: [Machine.State];
//   - reports that time may have passed: [Machine.Away].
//
// The core calls its driver by [Hooks] and Config.Invoke. Calls for workers are in
// Config.Jobs.
//
// # Files
//
// path.go has the path of an element, step by step, below a diagram. slot.go has the slot
// of an element and the diagram of its phases. machine.go has the step of the loop,
// ending.go the end of the run, item.go the contents of a checkpoint. workers.go runs
// user code that may block.
//
// The optional parts have a file each. The core calls them directly; they are nil if the
// operator does not have them:
//
//   - keys.go ([OrderKeys]): the elements of a key are called one after the other
//   - batches.go ([AddBatches]): one call for several elements
//   - backend.go ([AtBackend]): the service that is called decides when an attempt may start
//   - messages.go ([AddMessages]): elements are messages, which are settled
//   - observers.go ([AddObserving]): observers and counters
//   - handler.go ([HandleFailures]): results in place of failures
//   - sink.go ([AddHandOver]): a sink for failures
//   - history.go ([KeepTimelines]): the attempts of elements that failed or were slow
//   - timeouts.go ([OwnTimeouts]): a timeout for each element
//   - retrylog.go ([LogRetries]): log lines about retries
//
// # User code
//
// User code on the loop is called by one small function each, whose deferred function
// turns a panic into an error. If the code ends the goroutine by runtime.Goexit, that
// function fails the run with a [GoexitError], and the deferred functions of the driver
// finish the operator (law A6).
package core
