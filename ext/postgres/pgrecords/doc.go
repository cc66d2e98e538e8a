// Package pgrecords keeps the answers of requests with ids in PostgreSQL, for services
// whose effects are in the same database: record and effect are one transaction. Any
// number of servers share them.
//
//	pool, err := pgxpool.New(ctx, url)
//	…
//	records := pgrecords.New(pool)
//	err = records.Migrate(ctx)
//	…
//	// In the handler of a request:
//	answer, err := records.Run(ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
//		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - $1 WHERE id = $2", amount, id)
//		return exactlyonce.Response{Status: http.StatusCreated, Body: []byte("paid")}.Encode(), err
//	})
//
// In exactlyonce/server, Results.Handler expects an encoded Response; Results.Do takes
// any bytes.
//
// # Vocabulary
//
// [Records] is an exactlyonce.Store. It writes a record in three ways:
//
//	Put   joins a transaction of yours
//	Run   calls your function in a transaction, commits it, and finds the answer if the reply to COMMIT was lost
//	Exec  runs one statement; calls of many goroutines share a transaction, and so its COMMIT
//
// # Guarantees
//
// The suite exactlyonce/exactlyoncetest describes and checks them. They hold at every
// isolation level; with REPEATABLE READ and SERIALIZABLE, Put fails with a serialization
// failure (SQLSTATE 40001) where it would have waited. A collected record leaves a row
// without its answer, until its client is silent. Then a single row is left of the
// client, for 24 times that silence.
//
// Put takes an advisory lock of the transaction, shared, whose number is a hash of scope
// and client; marks and the collection of a client take it exclusively. So a transaction
// that stays open blocks marks of its client, not other requests. They give up after 2 s
// at most. The first Put for a client also adds its row: until that transaction ends,
// other requests of this client wait for it.
//
// # Cost
//
// BenchmarkExec compares Exec with the bare statement in the same group commit, and
// measures Run. On two cores shared with the server, without fsync: Exec 65,000 to 68,000
// calls a second at 256 at once, which is 70 to 74 % of the bare statement; Run, a
// transaction for each call, 7,000 to 8,000.
//
// # Migrations
//
// [Records.Migrate] makes the tables weir_clients and weir_answers. The same files are
// [Records.Migrations], for a migrator of your own.
//
// # Concurrency
//
// Records are safe for concurrent use.
package pgrecords
