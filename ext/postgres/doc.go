// Package postgres is an engine that keeps messages in queues in a PostgreSQL database
// (pgx v5), for workers on any number of machines.
//
//	engine, err := postgres.Open(ctx, "postgres://localhost/shop") // makes the tables, if they are missing
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
//
// [PutTx] puts a value into a queue in a transaction of your own.
//
// # Guarantees
//
// The guarantees of [store.Keeper] and [store.Waker]. The database's clock decides when
// messages are due and leases end, not the workers' clocks. Delays and leases are rounded
// up to a microsecond. If the database's clock is set forward, messages are due that much
// earlier; if set back, that much later.
//
// Calls of many goroutines share a statement, up to the number of [WithConnections] at
// once. Consumers do not wait for each other (FOR UPDATE SKIP LOCKED). The engine retries
// after a deadlock or serialization failure. A full disk returns [store.ErrFull].
//
// # Idle workers
//
// A connection beside the pool listens for all sources of an engine; the pool's
// BeforeConnect is asked before it is made. Sources do not poll: a source looks when a
// message was put, or when a delay or a lease has ended. A statement every 20 s looks for
// all of them, so messages without a notification are up to 20 s late: put by a process
// that was killed within the next 10 ms, leased by a worker that has died, inserted by
// another program, or in a queue whose name is longer than 7,000 bytes. With an order of
// keys, messages that were held, or committed more than a second after they were put, may
// be a second late.
//
// The engine first sends the listening connection a notification. While the connection
// cannot listen, or the notification does not arrive, as behind a pooler of transactions
// (PgBouncer), each source polls every 100 ms, tries again each second, and logs the
// first failure, and then the number of similar failures once a minute.
//
// # Tables
//
// [Open] makes weir_messages, weir_locks, weir_records and weir_migrations.
// [Engine.Migrations] has the SQL. Rows are updated and deleted as messages are taken and
// done: autovacuum must keep up, as with each queue in PostgreSQL.
package postgres
