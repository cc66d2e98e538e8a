// Package postgres is an engine that keeps messages in queues in a PostgreSQL database
// (pgx v5), for workers on any number of machines.
//
//	engine, err := postgres.Open(ctx, "postgres://localhost/shop") // makes the tables, if they are missing
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
//
// [PutTx] puts a value into a queue in a transaction of your own, with the rows that
// belong to it.
//
// # Guarantees
//
// The guarantees of [store.Keeper] and [store.Waker]. The database's clock decides when
// messages are due and how long a lease lasts, so the clocks of the workers do not
// matter. Delays and leases are rounded up to a microsecond. If the clock of the database
// server is set forward, messages are due as much earlier; if it is set back, as much
// later.
//
// Calls of many goroutines share a statement, up to the number of [WithConnections] at
// once. Consumers do not wait for each other (FOR UPDATE SKIP LOCKED). It retries after a
// deadlock or serialization failure. A full disk returns [store.ErrFull].
//
// # Idle workers
//
// An engine has a connection that listens for all of its sources, beside its pool; the
// pool's BeforeConnect is asked before it is made. Sources do not poll: a source looks
// when a message was put, or when a delay or a lease has ended. A statement every 20 s
// looks for all of them, so messages without a notification are up to 20 s late: messages
// put by a process that was killed within the next 10 ms, leased by a worker that has
// died, inserted by another program, or in a queue whose name is longer than 7,000 bytes.
//
// The engine sends the connection a notification when it begins. While it cannot listen,
// or the notification does not arrive, as behind a pooler of transactions (PgBouncer),
// each source polls its queue every 100 ms, tries again each second, and logs a
// warning: the first failure, and then the number of similar failures once a minute.
//
// # Tables
//
// [Open] makes weir_messages, weir_locks, weir_records and weir_migrations.
// [Engine.Migrations] has the SQL, for migration tools, and for a program that needs only
// the table of locks. Rows are updated and deleted as
// messages are taken and done: autovacuum must keep up, as with each queue in PostgreSQL.
package postgres
