// Package pgstore keeps messages in queues in a PostgreSQL database (pgx v5): it is a store for workers on any number of
// machines.
//
//	pool, err := pgxpool.New(ctx, url)
//	…
//	if err := pgstore.Migrate(ctx, pool); err != nil {
//		return err
//	}
//	s := pgstore.New(pool)
//	err = s.Put(ctx, "retry 10m", message)
//
// # Guarantees
//
// Those of [store.Inspector]. The database's clock decides what is due and how long a lease lasts, so the clocks of the
// workers do not matter. Delays and leases are rounded up to a microsecond. If the clock of the database server is set
// forward, messages are due as much earlier.
//
// Calls of many goroutines share a statement, up to [WithConnections] at once. Consumers do not wait for each other
// (FOR UPDATE SKIP LOCKED). A deadlock or serialization failure is tried again. A full disk is [store.ErrFull].
//
// # Tables
//
// [Migrate] makes weir_messages. The SQL is in the directory migrations, for those who use a tool of their own. Rows are
// updated and deleted as messages are taken and done: autovacuum must keep up, as with each queue in PostgreSQL.
package pgstore
