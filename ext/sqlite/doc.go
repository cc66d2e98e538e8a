// Package sqlite keeps the queues of a delivery.Queue in an SQLite database, for the
// workers of one machine. [Open] opens the engine, and makes its tables:
//
//	engine, err := sqlite.Open(ctx, "shop.db")
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
//
// [OpenDB] opens a database for tables of your own, with the same durability. [Engine.DB]
// is the database of an engine. The package is pure Go (modernc.org/sqlite), through
// database/sql.
//
//	db, err := sqlite.OpenDB(ctx, "orders.db")
//	…
//	err = db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
//		_, err := tx.ExecContext(ctx, "INSERT INTO orders (id, total) VALUES (?, ?)", id, total)
//		return err
//	})
//
// # Vocabulary
//
// [DB.Writer] is a pool with one connection, as SQLite has one writer at a time. Its
// transactions take the write lock when they begin. Goroutines wait for it in Go and
// never see SQLITE_BUSY from each other. [DB.Reader] is a pool of connections that only
// read, even while the writer writes.
//
// [DB.Write] is a group commit: concurrent calls share a transaction and its fsync. Each
// returns its own result: if one fails, the transaction is rolled back and run again,
// with a savepoint for each call. So a function may run twice.
//
// # Guarantees
//
// The journal is a write-ahead log (WAL), synchronous is FULL: commits survive a power
// cut. With [WithSynchronousNormal] a power cut may lose the last transactions; a crash
// of the program does not. Foreign keys are enforced.
//
// Write returns nil after the COMMIT. An error or panic of its function is returned after
// the shared transaction has ended, since the function may have seen the rows of others.
// If the transaction itself fails, all of its calls return an error that wraps the cause,
// and have no effect.
//
// # Concurrency
//
// A DB is safe for concurrent use, even by several processes on one machine. A
// transaction waits for another process's write lock until its context ends, at most for
// [WithBusyTimeout] (10 s by default). So a clean stop is bounded even if another process
// never commits. The file must not be on a network file system.
//
// # Idle workers
//
// Consumers of queues do not poll ([Engine.Wake]). [DB.Write] wakes the consumers of the
// queues in which its transaction has put or released messages, and a timer wakes them
// when a delay or a lease has ended. While there are consumers, a connection reads the
// file's data version every 100 ms. After a change, one statement looks at all queues
// that have consumers. So messages of other processes, other DBs and database/sql are
// found within about 100 ms.
//
// # Traps
//
// STRICT tables refuse a string in a BLOB column: pass []byte. A nil []byte is NULL.
// Store times as integers (time.Time.UnixNano).
package sqlite
