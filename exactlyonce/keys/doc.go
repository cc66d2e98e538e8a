// Package keys lets an HTTP service finish each request once, although its clients repeat
// requests and its processes die. A client names a request by an idempotency key. The
// service stores the progress of the request, and the next attempt continues from there.
//
//	store := keys.New(db, keys.PostgreSQL, keys.Config{})
//	rides := store.Operation("create_ride", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
//		ride, err := keys.Phase(ctx, run, "ride_created", func(ctx context.Context, tx *sql.Tx) (id int64, err error) {
//			err = tx.QueryRowContext(ctx, "INSERT INTO rides (rider) VALUES ($1) RETURNING id", run.User).Scan(&id)
//			return id, err
//		})
//		if err != nil {
//			return exactlyonce.Response{}, err
//		}
//		charge, err := keys.Call(ctx, run, "charge_created", func(ctx context.Context, key string) (string, error) {
//			return provider.Charge(ctx, key, 2000)
//		})
//		switch {
//		case errors.Is(err, provider.ErrDeclined): // definite: it is stored and given again
//			return keys.JSON(http.StatusPaymentRequired, "card declined")
//		case err != nil: // not definite: sent and not stored, the next attempt continues here
//			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
//		}
//		return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
//			if _, err := tx.ExecContext(ctx, "UPDATE rides SET charge = $1 WHERE id = $2", charge, ride); err != nil {
//				return exactlyonce.Response{}, err
//			}
//			return keys.JSON(http.StatusCreated, map[string]any{"ride": ride})
//		})
//	})
//	mux.Handle("POST /rides", authenticate(rides.Handler(keys.HandlerConfig{User: userOf})))
//	go store.Maintain(ctx, time.Minute)
//
// # Vocabulary
//
//   - An operation is a handler with a stable name, which is stored with the request.
//   - A run is an attempt to complete a request.
//   - A step is a phase or a call. Steps have names, and come in the same order in every
//     run.
//   - A [Phase] is work in the database. It and its recovery point are a single
//     transaction (law X2).
//   - A [Call] calls another service, outside of transactions, with its own key. Its
//     result is stored when it returns.
//   - [CallProvider] is a call that several services can serve. The choice is stored
//     before the service is called, and stays unless the service refuses.
//   - The recovery point is the name of the last completed step: started, …, finished.
//
// A run calls the handler from its beginning. Steps that are done do not run again: they
// return the stored result, which is JSON. So a handler decides by its request and by the
// results of its steps, and never by values that may differ between two runs.
//
// # Keys
//
// A request-level key is random and comes from the client in the header Idempotency-Key:
// two payments of a booking have two keys. An entity-level key is computed from the
// entity, such as payment-1234-refund: two requests for that refund are the same request,
// as long as the key is kept. See [HandlerConfig].Key. A key has 1 to 255 bytes. It is
// kept for Config.Retention after its request was finished; after that it means a new
// request.
//
// # Guarantees
//
//   - A key belongs to a user. The same key with other content is refused
//     (exactlyonce.ErrMismatch), and does not run.
//   - At most one run of a request has its lock. While it is younger than the lock's
//     timeout, others are refused (exactlyonce.ErrInProgress). Afterwards another run
//     takes over, and the old run, if it still works, cannot commit
//     (exactlyonce.ErrInProgress).
//   - A step that has committed does not run again. A call may: if the process dies
//     between its return and the commit. Then it has the same key, so that the other
//     service finds it.
//   - Transactions are serializable. After a serialization failure a phase runs again, up
//     to ten times; then the request fails with exactlyonce.ErrInProgress and can be
//     repeated.
//   - An error or panic unlocks the key and keeps the recovery point. The next attempt
//     continues at once.
//   - A refusal by another service, such as exactlyonce.ErrMismatch from the package
//     caller, that a step returns is an error of the handler. [Operation.Handler] does
//     not mistake it for a refusal by this operation.
//   - If the answer to COMMIT is lost, the run reads the stored state.
//   - [Keys.Complete] finishes requests that no client repeats, and gives up when
//     Config.Retention is over since they came. [Keys.Reap] removes requests that were
//     finished that long ago; it reports unfinished requests, and a person ends them by
//     [Keys.End].
//   - A process that is frozen in the transaction of a phase does not block other
//     requests, and attempts of this one get exactlyonce.ErrInProgress. PostgreSQL ends
//     that transaction when the lock's timeout has passed; then another run takes over.
//     SQLite has one writer for all requests: while another process writes, each attempt
//     waits, and gets exactlyonce.ErrInProgress after 10 s.
//
// Servers compare times of their own clocks. A server whose clock is ahead by more than
// the lock's timeout takes over from a run that still works. The work of that run is
// lost, but its effects are not duplicated.
//
// # Databases
//
// Any driver of database/sql for SQLite or PostgreSQL. [Keys.Migrate] makes the tables
// weir_keys and weir_key_steps. With ext/sqlite pass DB.Writer(). Serialization failures
// are recognised by SQLSTATE (pgx, lib/pq) and by the result code of SQLite
// (modernc.org/sqlite).
//
// # Concurrency
//
// Keys and operations are safe for concurrent use. A Run belongs to its handler.
//
// # Sources
//
// Brandur Leach, "Implementing Stripe-like Idempotency Keys in Postgres" (2017); the IETF
// draft "The Idempotency-Key HTTP Header Field".
package keys
