// Package sqliteanswers keeps the answers of paid calls in SQLite, so that no call is
// paid for twice, even if the program is killed.
//
//	db, err := sqlite.OpenDB(ctx, "answers.db")
//	…
//	answers := sqliteanswers.New(db, "summaries")
//	err = answers.Migrate(ctx)
//	…
//	keyOf := func(p Prompt) string { return p.Model + "\n" + p.Text }
//	fn := sqliteanswers.Blocking(answers, keyOf, complete)
//	op := asyncop.OrderedWaitWithRetry(fn, time.Minute, 500, policy,
//		asyncop.WithBackend(llm))
//
// An answer is committed before its result leaves the operator. So a run that is killed
// and started again repeats at most the calls that were in flight. No idempotency key of
// the service is needed.
//
// # Which answers are kept
//
// The answer of a call that returned without an error. Errors are not kept. The key must
// contain everything that the answer depends on. Answers stay until [Cache.Delete] or
// [Cache.Collect] removes them.
//
// # Equal keys
//
// Elements with the same key that are in flight at the same time make a call each.
// Package asyncop/lookup shares their calls.
//
// # Cost
//
// A stored answer is an attempt of its operator: it takes a permit and a goroutine, and
// waits until the backend admits it. The backend's rates then get back what it has taken,
// and it does not count as an answer of the service. Storing an answer takes a
// transaction, which calls that end at the same time share.
package sqliteanswers
