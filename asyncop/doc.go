// Package asyncop runs asynchronous calls inside a stream. It starts a call for each
// element, keeps a bounded number of calls in flight, emits the results in input order or
// as they arrive, and retries calls that failed or did not have a result yet. It is the
// AsyncWaitOperator of Apache Flink, with FLIP-232, for Go and go-streams.
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
// [AsyncWaitOperator.ResultsOf] does so without another goroutine, for short calls and
// loop bodies. [Map] is for a slice.
//
// # Vocabulary
//
//   - An element is an item of the stream: a record of type IN, a message, or a control
//     element such as a [Watermark].
//   - A slot is a unit of an operator's capacity. An element holds a slot until all its
//     results have been emitted.
//   - An attempt is a call for an element. Its outcome is an error or any number of
//     results.
//   - A retry is an attempt after the first. The strategy decides whether and when to
//     retry; its predicate selects the outcomes to retry.
//   - An element in back-off waits for its retry. It holds a slot, but no permit and no
//     goroutine.
//   - A permit is the right to run a call: see [WithMaxConcurrentCalls] and, for permits
//     that operators share, [WithBackend].
//   - The timeout limits the total time of an element, over all its attempts: see also
//     [WithTimeoutFor].
//   - A message is an element with an acknowledgement: see Messages below.
//
// # The life of an element
//
//	                                      ┌───────────── retry ─────────────┐
//	                                      ▼                                 │
//	accept ─▶ slot ─▶ key? batch? ─▶ permit ─▶ attempt ─▶ outcome ─▶ again? ─▶ back-off
//	  ▲                                                      │
//	  │ full: backpressure                                   ├─▶ results ─▶ their turn ─▶ emitted
//	                                                         └─▶ failure ─▶ fallback? ─▶ results
//	                                                               ▲           └─▶ pipeline fails | dropped | failure sink
//	at the deadline, wherever it stands ───────────────────────────┘
//	at the end of the input ─▶ elements in back-off get a last attempt at once
//
// With [KeyOrderedWait] an element first waits for earlier elements of its key, with
// [Batched] for elements that share its call.
//
// # Guarantees
//
// Each accepted element ends exactly once: its results are emitted, it fails, or the end
// of the run cuts it off. Err reports how many were cut off (law A1). Only the first
// completion of the current attempt has an effect (A2).
//
// The timeout overrides retries and fallbacks. It counts from the time when the element
// takes its slot, unless [WithTimeoutFromFirstAttempt]. A timeout is never retried (A3),
// nor is the outcome of a fallback ([HandleFailure]). A retry that could not start before
// the deadline is not made: the element waits for its deadline or, with
// [WithEarlyTimeout], ends at once. With n retries allowed there are at most n+1 attempts
// (A4). Timers never fire early (T1), and fire while downstream is blocked.
//
// Ordered operators emit in input order. Unordered operators emit in the order of
// completion, but watermarks keep their place in the stream. The results of an element
// stay together (Q1). The capacity limits the slots in use (Q2). Key-ordered operators
// are unordered, but call the elements of a key in sequence (K1), and their results leave
// in input order.
//
// Within a run the results of an element are emitted at most once. Its call may be made
// several times, or not at all if no permit is free before the deadline.
//
// # Lifecycle
//
// The constructors start the operator. It ends when
//
//   - its input is closed, and all accepted elements have left
//   - an element fails, and the failure policy is to fail the pipeline
//   - its context ends ([WithContext])
//   - Stop is called
//
// Err is set before Out is closed. Later elements are discarded and counted until
// upstream closes In, so goroutines do not leak (F1). To end a source of go-streams, use
// [WithUpstreamCancel]. Operators and flows of weir upstream end with a
// [*DownstreamError], unless [WithUpstreamRunning].
//
// At the end of the input of a flow (A5)
//
//   - elements that were not started get their first attempt
//   - elements in back-off get a last attempt at once, or after a wait that a server
//     demanded, up to the deadline
//   - running attempts are awaited
//   - further retries are not made, but counted and logged
//
// [WithDrainRetries] lets retries finish instead, as Results always does. Retries end
// when the operator notices the end, which requires a free slot. In a stream with
// checkpoints the marker participant.EndOfInput announces the end. The operator passes it
// on when all earlier elements have left, and checkpoints are taken meanwhile.
//
// # Failures
//
// An error or a panic in user code is an outcome of its element (A6). So is
// runtime.Goexit in code that may block; on the loop, it fails the operator. An element
// fails if such an outcome is not retried, or if its time runs out. Then
//
//   - a fallback may return results in place of the failure ([HandleFailure])
//   - without a fallback, or if it fails, the failure policy decides
//
// By default the first failure fails the pipeline, as in Flink: Err is an
// [*ElementError], and later results are not emitted. [WithFailureSink] stores failed
// elements in a table, a queue or the dead letters, and [WithDropOnFailure] logs and
// counts them.
//
// When retries are exhausted, a result that still asks for a retry is emitted, unless
// [WithExhaustedAsFailure].
//
// # Messages
//
// An operator also takes a [message.Message]: an element whose source keeps it until it
// is done, and delivers it again if it failed or was released. The function gets the
// value, and each result leaves as a message. The acknowledgement moves on to the result,
// or to several results as its parts. Without a result, the operator settles the message
// itself (laws D1, D2). The message is
//
//   - done if it ended without a result
//   - handed over if it was dropped, or was taken by the failure sink
//   - rejected if the failure sink can never take it
//   - failed if it failed the operator
//   - released if it was cut off, came too late, or waited in vain for its backend
//
// [AsyncWaitOperator.Messages] is the loop over messages. In a flow the next steps must
// know messages, as package flow does: a flow of go-streams typed on values panics. The
// source of a message must take a settlement without waiting. An operator
// [WithCheckpoints] refuses a message with an acknowledgement.
//
// # Reasons
//
// A strategies.Policy, made by strategies.ReasonAware, can replace a strategy. Its
// classifier names the reason why an outcome deserves another attempt, and its strategy
// decides how to act on the reason. The strategy knows the element, the stage it failed
// in, whether its call may happen twice, and the earlier attempts. It may block, without
// a permit. A function may report how far its call has come (predicates.ReportStage), and
// a policy defines which calls may happen twice. Other calls are repeated only if they
// cannot have taken effect:
//
//	op := asyncop.OrderedWaitWithRetry(send, 5*time.Second, 1000,
//		strategies.ReasonAware(httpretry.Classifier[Reply](), strategies.BestEffort[Reply]()).
//			IdempotentIf(isIdempotent))
//
// FLIP-232's strategies are policies that use only the number and the outcome of an
// attempt. A reason that is always retried depends only on the deadline, a cancel and the
// end of the input, and not on CanRetry or the strategy.
//
// # Concurrency
//
// One goroutine, the loop, owns the queue, the timers and the state of every element. It
// calls AsyncInvoke, predicates and classifiers one at a time, and they must not block.
// It also calls the strategies of FLIP-232, of package strategies, and strategies that
// Policy.Immediate declares not to block. Calls of [Blocking] or [Batched], other
// strategies, and steps before a retry run on other goroutines. No lock is held while
// user code runs. Completions may come from any goroutine.
//
// # Sources
//
// The semantics follow AsyncWaitOperator of Apache Flink 2.0 with FLIP-232 (retries),
// except where a law differs: see DESIGN.md.
package asyncop
