// Package sqliteanswers keeps the answers of paid calls in SQLite.
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
// An answer is committed before its result leaves the operator. So after a kill, a run
// repeats at most the calls that were in flight. The service needs no idempotency key.
//
// # Which answers are kept
//
// Answers are kept, errors are not. The key must contain everything that the answer
// depends on. Answers stay until [Cache.Delete] or [Cache.Collect] removes them.
//
// # Equal keys
//
// Elements in flight with the same key make a call each. Package asyncop/lookup shares
// their calls.
//
// # Cost
//
// A stored answer is an attempt: it takes a permit and a goroutine, and waits until the
// backend admits it. What it took from the backend's rates is then returned, and it does
// not count as an answer of the service. Calls that end at the same time store their
// answers in one transaction.
package sqliteanswers
