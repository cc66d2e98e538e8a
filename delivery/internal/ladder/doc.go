// Package ladder redelivers failed messages later: through layers of a store, each with a
// delay of its own, and in the end to the dead letters.
//
// A delivery.Queue uses it for its failed messages.
//
// # Vocabulary
//
// A visit is one passage through an operator, with its short retries. The n-th visit that
// fails sends a message to the n-th layer. When its delay has passed, it returns for its
// next visit, with its history. After the last layer it becomes a dead letter. Dead
// letters that are merged begin at the first layer again.
//
//	visit 1 fails ──▶ layer 1 ─▶ visit 2 fails ──▶ layer 2 ─▶ visit 3 fails ──▶ dead letters (exhausted)
//	permanent error, or unsafe to repeat, at any visit ─────────────────────▶ dead letters
//
// The operator decides which messages go to the ladder. With Policy.WithMaxDelay, a
// message leaves if its next retry would wait for longer; with WithMaxWaiting, if too
// many elements wait for retries. An error that is not named as permanent goes to the
// next layer, even if no retry was asked for.
//
// # Calls in doubt
//
// A call that may have taken effect and must not happen twice goes to the dead letters,
// and is marked there. There is one exception: its requests have ids that stay with the
// message (Name in the Config of exactlyonce/caller), and the server remembers them for
// longer than the rest of the ladder lasts ([Config.Remembers]). Then the message goes to
// the next layer, and its next visit makes the call again under the same id, on any
// worker. A message that returns after that time is not visited.
//
// FLIP-232 strategies do not prove anything about calls. Under such a strategy, a call
// counts as repeatable if its predicate asked for another attempt; after a timeout, or an
// error that it did not match, it is unsafe to repeat unless it is idempotent
// (predicates.Idempotent, or strategies.PolicyOf(strategy).Idempotent()).
//
// # Guarantees
//
// [Ladder.Take] returns nil when the message is durable in a layer or in the dead
// letters; the operator acknowledges it after that (law D1). If the process is killed in
// between, the message is visited again, and handed over again with the same id and
// visit, which has no effect. If the message was purged while its call ran, Take does not
// store it, and returns nil.
//
// A message never returns before its delay has passed (law D3): the jitter only adds. A
// layer's rate and number of messages in flight are bounded for each process by itself. A
// layer that waits for these bounds does not delay other layers or new messages (law D4).
//
// # The order of a key
//
// Later messages of a key overtake a message that waits in a layer. With [Config.Blocked]
// they wait behind it instead: at most one message of a key is in flight, messages that
// arrive meanwhile wait in memory, and while one waits in a layer they wait in the queue
// Blocked. Each is delivered when its predecessor is done or a dead letter. The order is
// the one in which their sources return them. Over [Config.MaxBlocked] the sources of new
// messages are held back. A restart finds the waiting messages in the store.
//
// This holds for the messages of one process. So all messages of a key must reach the
// same process, as messages of a partition do, and each process needs queues of its own:
// with several workers on one queue another worker would call the later message. A nacked
// message is redelivered when its source returns it, and the messages behind it are
// released with it: a queue returns waiting messages first. A nacked message of the queue
// Blocked waits for its delay by this machine's clock, not by the store's. A ladder then
// has one Source at a time. When a worker finds out that another one extends a lease in
// its queue Blocked, it logs a warning.
//
// A ladder without Blocked takes the messages in the Blocked of another version as it
// takes that version's layers, if [Config.Others] names it: at once, and in no order of
// keys. So no message stays for ever when a program drops Blocked.
package ladder
