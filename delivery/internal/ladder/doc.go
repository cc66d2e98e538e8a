// Package ladder redelivers failed messages of a delivery.Queue later: through layers of
// a store, each with its own delay, and in the end to the dead letters.
//
// # Vocabulary
//
// A visit is one passage through an operator, with its short retries. The n-th visit that
// fails sends a message to the n-th layer. When its delay has passed, it returns for its
// next visit, with its history. After the last layer it becomes a dead letter. Dead
// letters that are merged begin at the first layer again. Package delivery has a picture.
//
// The operator decides which messages go to the ladder. With Policy.WithMaxDelay, a
// message leaves if its next retry would wait for longer; with WithMaxWaiting, if too
// many elements wait for retries. An error that is not named as permanent goes to the
// next layer, even if no retry was asked for.
//
// # Calls in doubt
//
// A call that may have taken effect and must not happen twice goes to the dead letters,
// marked as such. There is one exception: its requests have ids that stay with the
// message (Name in the Config of exactlyonce/caller), and the server remembers them for
// longer than the rest of the ladder lasts ([Config.Remembers]). Then the message goes to
// the next layer, and its next visit repeats the call under the same id, on any worker. A
// message that returns after that time is not visited.
//
// Under a FLIP-232 strategy, a call counts as repeatable if its predicate asked for
// another attempt; after a timeout, or an error that it did not match, it is unsafe to
// repeat unless it is idempotent (predicates.Idempotent, or
// strategies.PolicyOf(strategy).Idempotent()).
//
// # Guarantees
//
// The operator acknowledges a message after [Ladder.TakeFailure] has returned nil (law
// D1). If the process is killed in between, the message is visited again and handed over
// with the same id and visit, and the engine ignores the second hand-over.
//
// A message never returns before its delay has passed (law D3): the jitter only adds.
// When a backend recovers, delivery.Run makes the messages due that failed because of its
// outage. Each process limits a layer's rate and messages in flight by itself. A layer
// that waits for these limits does not delay other layers or new messages (law D4).
//
// # The order of a key
//
// With [Config.InOrder] the store takes the messages of a key one at a time, and a
// message that fails waits for its next visit in its place in the queue.
//
// An earlier version of the program may have left messages in layers, and in a queue of
// messages that wait behind them, named "<queue>-blocked". [Config.Others] names these
// queues. They become inputs of the source. A ladder with InOrder delivers, for each key,
// the messages of these queues before the messages of the queue itself. It does not move
// them: a message of the queue is released as long as its key has messages there. Without
// InOrder they are delivered at once.
package ladder
