// Package ladder brings failed messages back later: through layers of a store, each with
// a delay of its own, and in the end to the dead letters.
//
// It is what a delivery.Queue has beside its messages.
//
// # Vocabulary
//
// A visit is one passage through an operator, with its short retries. The n-th visit that
// fails sends a message to the n-th layer. When its delay has passed, it comes back for
// its next visit, with its history. After the last layer it becomes a dead letter. Dead
// letters that are merged begin at the first layer again.
//
//	visit 1 fails ──▶ layer 1 ─▶ visit 2 fails ──▶ layer 2 ─▶ visit 3 fails ──▶ dead letters (exhausted)
//	permanent error, or unsafe to repeat, at any visit ─────────────────────▶ dead letters
//
// The operator decides which messages go to the ladder. With Policy.WithMaxDelay, a
// message leaves if its next retry would wait for longer; with WithMaxWaiting, if too
// many elements wait for retries. An error that nobody has named as permanent goes to the
// next layer, also if no retry was asked for.
//
// # Calls in doubt
//
// A call that may have taken effect and must not happen twice goes to the dead letters,
// and is marked there. There is one exception: its requests have ids that stay with the
// message (Name in the Config of exactlyonce/caller), and the server remembers them for
// longer than the rest of the ladder lasts ([Config.Remembers]). Then the message goes to
// the next layer, and its next visit makes the call again under the same id, on any
// worker. A message that comes back after that time is not visited.
//
// FLIP-232 strategies prove nothing about calls. Under one, a call counts as repeatable
// if its predicate asked for another attempt; after a timeout, or an error that it did
// not match, it is unsafe to repeat unless it is idempotent (predicates.Idempotent, or
// strategies.PolicyOf(strategy).Idempotent()).
//
// # Guarantees
//
// [Ladder.Take] returns nil when the message is durable in a layer or in the dead
// letters; the operator acknowledges it after that (law D1). If the process is killed in
// between, the message is visited again, and handed over again with the same id and
// visit, which has no effect. If the message was purged while its call ran, Take does not
// store it, and returns nil.
//
// A message never comes back before its delay has passed (law D3): the jitter only adds.
// A layer's rate and number of messages in flight are bounded for each process by itself.
// A layer that waits for them does not hold up other layers or new messages (law D4).
//
// # The order of a key
//
// Later messages of a key overtake one that waits in a layer. With [Config.Blocked] they
// wait behind it instead: of the messages of a key one is in flight at most, those that
// come meanwhile wait in memory, and while one waits in a layer they wait in the queue
// Blocked. Each comes when the one before it is done or a dead letter. The order is that
// in which their sources give them. Over [Config.MaxBlocked] the sources of new messages
// are held back. A restart finds in the store what waits.
//
// That holds for the messages of one process. So messages of a key must all come to the
// same one, as those of a partition do, and each process needs queues of its own: with
// several workers on one queue another worker would call the later message. A message
// that is nacked comes back when its source gives it, and those behind it are released
// with it: a queue gives those first that wait already. One of the queue Blocked waits
// for the delay of its Nack by this machine's clock, not by that of the store. A ladder
// has one Source at a time then. When a worker finds out that another one extends a lease
// in its queue Blocked, it logs a warning.
//
// A ladder without Blocked takes what waits in the Blocked of another version as it takes
// a layer of that, if [Config.Others] names it: at once, and in no order of keys. So
// nothing stays for ever when a program drops it.
package ladder
