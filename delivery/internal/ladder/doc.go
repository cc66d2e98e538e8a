// Package ladder redelivers failed messages of a delivery.Queue later: through layers of
// a store, each with its own delay, and in the end to the dead letters.
//
// # Vocabulary
//
// A visit is one passage through an operator, with its short retries. After the n-th
// failed visit, a message waits in the n-th layer. When the delay of the layer has
// passed, the message returns for its next visit, with its history. After the last layer
// it becomes a dead letter. A dead letter that is merged begins at the first layer again.
// docs/message-path.md has a picture.
//
// The operator decides which messages go to the ladder: by default, when their retries
// are used up. With Policy.WithMaxDelay, a message leaves the operator if its next retry
// would wait for longer. With WithMaxWaiting, it leaves if too many elements wait for
// retries. A message goes to the next layer even if no retry was asked for, unless its
// error is named as permanent.
//
// # Calls in doubt
//
// If a call may have taken effect and must not happen twice, its message goes to the dead
// letters, with the cause store.UnsafeToRepeat. But the message goes to the next layer if
// both of these hold:
//
//   - The requests of the call have ids that stay with the message (Name in the Config of
//     exactlyonce/caller).
//   - The server remembers these ids for longer than the rest of the ladder lasts
//     ([Config.Remembers]).
//
// Then the next visit repeats the call under the same id, on any worker. A message that
// returns after the server may have forgotten the id becomes a dead letter without a
// visit.
//
// Under a FLIP-232 strategy, a call may be repeated if its predicate asked for another
// attempt. After a timeout, or an error that the predicate did not match, the call is
// unsafe to repeat, unless it is idempotent (predicates.Idempotent, or
// strategies.PolicyOf(strategy).Idempotent()).
//
// # Guarantees
//
// The operator acknowledges a message after [Ladder.TakeFailure] has returned nil (law
// D1). If the process is killed in between, the message is visited again and handed over
// with the same id and visit, and the engine ignores the second hand-over.
//
// A message never returns before its delay has passed (law D3): the jitter only adds. But
// when a backend recovers, delivery.Run makes the messages due that failed because of its
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
// queues, and they become inputs of the source. For each key, their messages go first: as
// long as an earlier queue has messages of a key, the source releases the messages of
// this key that it takes from the queue itself. Messages do not move between these
// queues.
//
// Without InOrder the source also delivers the messages of these queues, in any order.
package ladder
