// Package sqliterecords keeps the answers of requests with ids in SQLite. Record and
// effect are one transaction in the same database.
//
//	db, err := sqlite.OpenDB(ctx, "accounts.db")
//	…
//	records := sqliterecords.New(db)
//	err = records.Migrate(ctx)
//	…
//	// In the handler of a request:
//	answer, err := records.Run(ctx, req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - ? WHERE id = ?", amount, id)
//		return exactlyonce.Response{Status: http.StatusCreated, Body: []byte("paid")}.Encode(), err
//	})
//
// In exactlyonce/server, Results.Handler expects an encoded Response; Results.Do takes
// any bytes.
//
// # Vocabulary
//
// [Records] is an exactlyonce.Store. [Records.Run] is for effects of a few statements:
// calls of many goroutines share a transaction (sqlite.DB.Write) and its fsync.
// [Records.Put] joins your own transaction, with an fsync each.
//
// # Guarantees
//
// The suite exactlyonce/exactlyoncetest describes and checks them. A collected record
// leaves a row without its answer, about 60 bytes, until its client is silent. Then one
// row is left of the client, for 24 times that silence.
//
// # Cost
//
// BenchmarkRun, on two cores, synchronous FULL: 137,000 to 159,000 calls of Run a second
// at 256 calls at once, which is 56 to 62 % of the bare statement in the same group
// commit; 145,000 to 147,000 at 1,024, 63 to 65 %. The difference is smaller on slower
// disks. A client without another call in the transaction adds a SELECT.
//
// # Migrations
//
// [Records.Migrate] makes the tables weir_clients and weir_answers. [Records.Migrations]
// has the same files for your own migrator.
//
// # Concurrency
//
// Records are safe for concurrent use, even by several processes on one machine.
package sqliterecords
