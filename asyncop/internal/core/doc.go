// Package core is an asynchronous operator as a state machine: slots, order, attempts,
// retries, deadlines, and the contents of a checkpoint. It has no loop, no channels and
// no logger.
//
// DESIGN.md lists the laws, such as A5, in section 3.
//
// # Owner
//
// The driver's goroutine owns a [Machine] and everything in it. It calls AsyncInvoke,
// too. Blocking calls run on other goroutines, and any goroutine may complete an attempt.
// The shared state is in package call.
//
// # Calls
//
// A driver
//
//   - feeds elements to the core: [Machine.Accept]; [Machine.Restore] for an item of a
//     checkpoint or a control element; [Machine.EndRetries] when the input has ended;
//   - lets it work: [Machine.Step], and [Machine.Next], which returns when the next step
//     is due;
//   - takes the results: [Machine.Head] and [Machine.PopHead];
//   - copies the elements in flight for a checkpoint: [Machine.Items];
//   - ends it: [Machine.End], then [Machine.Abandon], [Machine.Ended] for each element in
//     flight, and [Machine.Forget];
//   - ends a run that was cancelled: [Machine.EndIfCancelled];
//   - ends elements whose messages were purged: [Machine.EndPurged];
//   - ends a run whose budget is spent: [Machine.MustEndForBudget], [Machine.Spent] and
//     [Machine.AddSpent];
//   - reads its state: [Machine.State], [Machine.FreeSlots];
//   - uses its parts: [Machine.Messages], [Machine.Observing], [Machine.Batches],
//     [Machine.HandOver];
//   - reports that time may have passed: [Machine.NoteSlept], [Machine.NoteRanCode].
//
// The core calls the user's functions, and makes the user's errors and log lines, through
// [User]. It appends the calls that need a worker to Config.Jobs.
//
// # Files
//
//   - path.go: the path of an element, step by step
//   - slot.go: the slot of an element, and its phases
//   - machine.go: the step of the loop
//   - ending.go: the end of the run
//   - item.go: the contents of a checkpoint
//   - workers.go: user code that may block
//
// Each part has a file. A core has these parts only if [Config] has their option:
//
//   - keys.go: calls the elements of a key one after the other
//   - batches.go: calls for several elements
//   - backend.go: the called service admits attempts
//   - lookups.go: elements with the same key share calls and retries
//   - observers.go: observers and counters
//   - handler.go: results in place of failures
//   - sink.go: a sink for failures
//   - timeouts.go: a timeout for each element
//
// Every core has these:
//
//   - user.go: the interface of the user's functions, errors and log lines
//   - messages.go: settles elements that are messages
//   - snooze.go: messages that the call puts off
//   - history.go: the attempts of elements that failed or were slow
//   - retrylog.go: log lines about retries
//
// # User code
//
// Each piece of user code is called in a small function, whose deferred function turns a
// panic into an error. After runtime.Goexit, it fails the run with a [GoexitError], and
// the deferred functions of the driver finish the operator (law A6).
package core
