// Package pgrecords keeps the answers of requests with ids in PostgreSQL. Record and
// effect are one transaction in the same database. Any number of servers share the
// records.
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
//	Put   joins your transaction
//	Run   calls your function in a transaction, commits it, and finds the answer if the reply to COMMIT was lost
//	Exec  runs one statement; calls of many goroutines share a transaction
//
// # Guarantees
//
// The suite exactlyonce/exactlyoncetest describes and checks them. They hold at every
// isolation level. Where Put would wait, REPEATABLE READ and SERIALIZABLE make it fail
// with a serialization failure (SQLSTATE 40001). A collected record leaves a row without
// its answer until its client is silent. Then one row is left of the client, for 24 times
// that silence.
//
// Put takes a shared advisory lock of the transaction, whose number is a hash of scope
// and client; marks and the collection of a client take it exclusively. So an open
// transaction blocks marks of its client, which give up after 2 s at most, but not other
// requests. The first Put for a client adds its row, and other requests of this client
// wait until that transaction ends.
//
// # Cost
//
// BenchmarkExec, on two cores shared with the server, without fsync, 256 calls at once:
// Exec 65,000 to 68,000 calls a second, which is 70 to 74 % of the bare statement in the
// same group commit; Run, with a transaction for each call, 7,000 to 8,000.
//
// # Migrations
//
// [Records.Migrate] makes the tables weir_clients and weir_answers. [Records.Migrations]
// has the same files for your own migrator.
//
// # Concurrency
//
// Records are safe for concurrent use.
package pgrecords
