// Package sqlitestore keeps messages in queues in an SQLite database: it is a store for the workers of one machine.
//
//	db, err := sqlite.Open(ctx, "queues.db")
//	…
//	if err := sqlitestore.Migrate(ctx, db); err != nil {
//		return err
//	}
//	s := sqlitestore.New(db)
//	err = s.Put(ctx, "retry 10m", message)
//
// # Guarantees
//
// Those of [store.Inspector]. What Put has returned for is on disk and survives a power cut, unless the database was opened
// WithSynchronousNormal. Calls of many goroutines share a commit, so put from many goroutines, or many messages in a call.
//
// The clock of the store does not go back. It is the machine's, and goes on when that one is set back, also in the next run:
// the highest time used is in the table weir_messages_clock. A machine's clock that is set forward between two runs is taken
// for time that has passed. Processes that have one file open agree on the highest clock.
//
// A full disk, or a database that has reached its max_page_count, is [store.ErrFull].
//
// # Tables
//
// [Migrate] makes weir_messages and weir_messages_clock. The SQL is in the directory migrations, for those who use a tool
// of their own.
package sqlitestore
