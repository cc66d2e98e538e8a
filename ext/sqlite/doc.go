// Package sqlite keeps the queues of a delivery.Queue in an SQLite database, for the
// workers of one machine. [Open] opens the engine, and makes its tables:
//
//	engine, err := sqlite.Open(ctx, "shop.db")
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
//
// [OpenDB] opens a database for tables of your own, as weir's stores use it: durable,
// with a single writer and several readers. [Engine.DB] is the database of an engine. The
// package is pure Go (modernc.org/sqlite), through database/sql.
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
// SQLite has a single writer at a time. [DB.Writer] is a pool with one connection, whose
// transactions take the write lock when they begin; goroutines wait for it in Go and
// never see SQLITE_BUSY from each other. [DB.Reader] is a pool of connections that cannot
// write, and that read while the writer writes.
//
// [DB.Write] is a group commit: calls of many goroutines share a transaction, and so the
// fsync at its end. Each call returns its own result: if one fails, the transaction is
// rolled back and run again, with a savepoint for each call. So a function may run twice.
//
// # Guarantees
//
// The journal is a write-ahead log (WAL), synchronous is FULL: commits survive a power
// cut. With [WithSynchronousNormal] the last transactions may be lost in a power cut, not
// in a crash of the program. Foreign keys are enforced.
//
// A call of Write returns nil after the COMMIT. An error that its function returned, or a
// panic in it, is returned after the transaction of the others has ended, since the
// function may have seen their rows. If the transaction itself fails, all of its calls
// return an error that wraps the cause, and have no effect.
//
// # Concurrency
//
// A DB is safe for concurrent use, even by several processes on one machine. A
// transaction waits for the write lock of another process until the context of its call
// ends, and for the time of [WithBusyTimeout] at most, 10 s by default. So a clean stop
// is bounded even if another process never commits. The file must not be on a network
// file system.
//
// # Idle workers
//
// Consumers of queues do not poll ([Engine.Wake]). A transaction of [DB.Write] wakes the
// consumers of the queues in which it has put or released messages, and a timer wakes
// them when a delay or a lease has ended. While there are consumers, a connection reads
// the data version of the file every 100 ms. If it has changed, one statement looks at
// all queues that have consumers. So messages of other processes, of other DBs of this
// process, and of transactions of database/sql are found within about 100 ms.
//
// # Traps
//
// STRICT tables refuse a string in a BLOB column: pass []byte. A nil []byte is NULL.
// Store times as integers (time.Time.UnixNano).
package sqlite
