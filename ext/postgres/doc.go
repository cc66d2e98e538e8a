// Package postgres is an engine that keeps messages in queues in a PostgreSQL database (pgx v5), for workers on any number of machines.
//
//	engine, err := postgres.Open(ctx, "postgres://localhost/shop") // makes the tables, if they are missing
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
//
// [PutTx] puts a value into a queue in a transaction of your own, with the rows that belong to it.
//
// # Guarantees
//
// Those of [store.Inspector], [store.Chooser] and [store.Waker]. The database's clock decides what is due and how long a lease lasts, so
// the clocks of the workers do not matter. Delays and leases are rounded up to a microsecond. If the clock of the database server is set
// forward, messages are due as much earlier.
//
// Calls of many goroutines share a statement, up to [WithConnections] at once. Consumers do not wait for each other
// (FOR UPDATE SKIP LOCKED). A deadlock or serialization failure is tried again. A full disk is [store.ErrFull].
//
// # Idle workers
//
// An engine has one connection that listens for all of its sources, beside those of its pool; the pool's BeforeConnect is asked before it
// is made. Sources do not poll: one looks when a message was put, or when a delay or a lease has ended. One statement each 20 s looks for
// all of them, so up to 20 s late is what nobody has told: what a process has put that was killed within the next 10 ms, the lease of a
// worker that has died, what another program has inserted, and what is in a queue whose name is longer than 7,000 bytes.
//
// While the connection cannot listen, as behind a pooler of transactions (PgBouncer), each source polls its queue every 100 ms, tries again
// each second, and logs a warning once a minute.
//
// # Tables
//
// [Open] makes weir_messages, weir_locks, weir_records and weir_migrations. [Migrations] has the SQL, for those who use a tool of their own. Rows are
// updated and deleted as messages are taken and done: autovacuum must keep up, as with each queue in PostgreSQL.
package postgres
