// Package asyncop runs asynchronous calls inside a stream: for every element it starts a call that is answered later,
// keeps a bounded number of them in flight, and emits the results in input order or as they come. Calls that failed or
// came back unready are tried again on timers. It is to Go and go-streams what AsyncWaitOperator with FLIP-232 is to
// Apache Flink.
//
//	lookup := asyncop.Blocking(func(ctx context.Context, key string) (Row, error) {
//		return table.Get(ctx, key)
//	})
//	op := asyncop.OrderedWaitWithRetry(lookup, 5*time.Second, 1000,
//		strategies.FixedDelay[Row](3, 100*time.Millisecond).
//			RetryIfResult(predicates.EmptyResult).
//			RetryIfException(predicates.HasException),
//		asyncop.WithDrainRetries()) // the input may end before its retries do
//	source.Via(op).To(sink)
//	if err := op.Wait(); err != nil {
//		log.Fatal(err)
//	}
//
// Without go-streams, range over the results:
//
//	for row, err := range op.Results(slices.Values(keys)) {
//
// [AsyncWaitOperator.ResultsOf] does so without another goroutine, for calls and loop bodies that are short.
//
// # Vocabulary
//
//   - An element is what the stream carries: a record of type IN, or a control element such as a [Watermark].
//   - A slot is an element's place in the operator, from its acceptance until all its results have been emitted. The
//     capacity bounds the slots.
//   - An attempt is one call for one element. It has an outcome: results, possibly none, or an error.
//   - A retry is an attempt after the first. The strategy's predicate says which outcomes deserve one, the strategy
//     whether and when there may be one. An element that waits for its retry is in back-off: it holds a slot, but no
//     permit and no goroutine.
//   - A permit is the right to run a call: see [WithMaxConcurrentCalls], and [WithPermits] for those that operators share.
//   - The timeout bounds the total time of an element, over all its attempts.
//
// # The life of an element
//
//	                             ┌───────────── retry ─────────────┐
//	                             ▼                                 │
//	accept ─▶ slot ─▶ permit ─▶ attempt ─▶ outcome ─▶ again? ─▶ back-off
//	  ▲                                       │
//	  │ full: backpressure                    ├─▶ results ─▶ their turn ─▶ emitted
//	                                          └─▶ failure ─▶ fallback? ─▶ results
//	                                                ▲           └─▶ pipeline fails | dropped | failure sink
//	at the deadline, wherever it stands ────────────┘
//	at the end of the input ─▶ what is in back-off gets one last attempt at once
//
// # Guarantees
//
// Every accepted element ends exactly once: its results are emitted, or it fails, or the run is cut off and it is
// abandoned, which is counted and told by Err (law A1). The first completion of the current attempt counts; later ones
// and those of earlier attempts change nothing (A2).
//
// The timeout has the last word: it counts from the moment the element takes its slot, and what it leads to is never
// retried (A3). Neither is what a fallback returns ([HandleFailure]). A retry that could not start before the deadline is not made; the element waits for its deadline, or
// with [WithEarlyTimeout] ends at once. With n retries allowed there are at most n+1 attempts (A4). Timers never fire
// early (T1), and go on when downstream takes nothing.
//
// Ordered operators emit in input order. Unordered ones emit in the order of completion; nothing crosses a watermark in
// either direction. The results of one element stay together (Q1). There are never more slots than the capacity (Q2). Key-ordered
// ones ([KeyOrderedWait]) are unordered ones that call the elements of a key one after the other (K1).
//
// Within one run the results of an element are emitted at most once. Its call may be made several times, or never if no
// permit came free before the deadline.
//
// # Lifecycle
//
// The constructors start the operator. It ends when its input is closed and everything accepted has left; when an
// element fails and the failure policy is to fail the pipeline; when its context ends; or by Stop. In every case Err is
// set before Out is closed, and what upstream still sends is discarded and counted until it closes In, so that no
// goroutine stays behind (F1). go-streams has no way to tell a source that nobody listens any more: give the operator
// one with [WithUpstreamCancel].
//
// At the end of the input, elements that have not been started get their first attempt, those in back-off exactly one
// more at once, running attempts are awaited, and no retry follows (A5). A wait that a server demanded, as by Retry-After, is
// kept, up to the deadline. The end is noticed when a slot is free to read for: as
// long as all are taken, retries go on. [WithDrainRetries] lets retries run their
// course instead; so does Results, unless [WithCutRetries] is given. What is cut is counted and logged. In a stream with checkpoints the marker participant.EndOfInput tells of it before the input is closed: it
// is passed on when all before it has left, and checkpoints are taken meanwhile.
//
// # Failures
//
// An error, a panic or a runtime.Goexit in user code is an outcome of its element (A6). By default the first failure of
// an element fails the pipeline, as in Flink: Err is an [*ElementError] and nothing is emitted after it.
// [WithDropOnFailure] and [WithFailureSink] let the others go on. Before that, a fallback may have results in its place
// ([HandleFailure]). A result that still asks for a retry when none is left
// is emitted as it is, unless [WithExhaustedAsFailure].
//
// # Messages
//
// An operator takes a [delivery.Message] as it takes a watermark: its function gets the value, and each result leaves as a message. One
// result carries the acknowledgement on, several are parts of it. The operator settles a message of which nothing leaves: acknowledged if
// it ended without a result, was dropped or was taken by the failure sink; nacked if it failed, was cut off or came too late (laws D1,
// D2). In a flow, what follows must know messages: flows of weir do, a flow of go-streams typed on values panics. The source of a message
// must take the verdict without waiting; with [WithCheckpoints] a message with an acknowledgement is refused. [AsyncWaitOperator.Messages]
// is the loop over messages.
//
// # Reasons
//
// A strategies.Policy, made by strategies.ReasonAware, is a strategy as any other for the constructors, and sees more: a
// classifier names the reason why an outcome deserves another try, and a strategy decides over it that knows the element,
// the stage it failed in, whether its call may happen twice, and what happened before. It may block; its element then
// holds its slot, but no permit. A function may report how far its call has come (predicates.ReportStage), and
// a policy which calls may happen twice. A call that must not is then repeated only if it cannot have taken effect:
//
//	op := asyncop.OrderedWaitWithRetry(send, 5*time.Second, 1000,
//		strategies.ReasonAware(httpretry.Classifier[Reply](), strategies.BestEffort[Reply]()).
//			IdempotentIf(isIdempotent).
//			WithBudget(strategies.NewBudget(0.2, 10, 100)))
//
// FLIP-232's strategies go the same way: they are policies that look at nothing but the number and the outcome of an
// attempt. Reasons that are always retried outrank CanRetry and the strategy, but neither the deadline nor a cancel nor
// the end of the input.
//
// # Concurrency
//
// One goroutine, the loop, owns the queue, the timers and the state of every element. AsyncInvoke, predicates,
// classifiers and strategies that do not block by nature (FLIP-232's, those of package strategies, and what
// Policy.Immediate vouches for) are called on it, one at a time, and must not block; what blocks goes through
// [Blocking], whose calls run on goroutines of their own, as do reason-aware strategies that may block and what they want
// done before a retry. No lock is held while user code runs. Completions may come from any goroutine.
//
// # Sources
//
// The semantics are those of AsyncWaitOperator of Apache Flink 2.0 with FLIP-232 (retries) except where a law says
// otherwise; DESIGN.md lists the differences.
package asyncop
