// Package keys lets an HTTP service finish each request once, although clients repeat
// requests and processes die. A client names a request by an idempotency key. The next
// attempt continues from its stored progress.
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
//   - A [Phase] is work in the database, in a transaction with its recovery point (law
//     X2).
//   - A [Call] calls another service, outside of transactions, with its own key. Its
//     result is stored when it returns.
//   - [CallProvider] is a call that several services can serve. The choice is stored
//     before the service is called, and stays unless the service refuses.
//   - The recovery point is the name of the last completed step: started, …, finished.
//
// A run calls the handler from its beginning. Completed steps do not run again: they
// return the stored result, as JSON. So a handler decides by its request and the results
// of its steps, never by values that may differ between runs.
//
// # Keys
//
// A request-level key is random and comes from the client in the header Idempotency-Key.
// An entity-level key is computed from the entity, such as payment-1234-refund: two
// requests for that refund are the same request, as long as the key is kept. See
// [HandlerConfig].Key.
//
// # Guarantees
//
//   - A key belongs to a user. The same key with other content is refused
//     (exactlyonce.ErrMismatch).
//   - At most one run of a request has its lock. Until the lock's timeout, others are
//     refused (exactlyonce.ErrInProgress). Then another run takes over, and the old run
//     cannot commit (exactlyonce.ErrInProgress).
//   - A committed step does not run again. A call may, with the same key, if the process
//     dies between its return and the commit.
//   - Transactions are serializable. A phase runs again after a serialization failure.
//     After ten of them the request fails with exactlyonce.ErrInProgress.
//   - An error or panic unlocks the key and keeps the recovery point. The next attempt
//     continues at once.
//   - A refusal by another service that a step returns, such as exactlyonce.ErrMismatch
//     from package caller, is an error of the handler, not a refusal by this operation.
//   - If the answer to COMMIT is lost, the run reads the stored state.
//   - [Keys.Complete] finishes requests that no client repeats, and gives up
//     Config.Retention after they came. [Keys.Reap] removes requests that were finished
//     that long ago, and reports unfinished ones; a person ends them by [Keys.End].
//   - A process that is frozen in the transaction of a phase does not block other
//     requests, and attempts of this one get exactlyonce.ErrInProgress. PostgreSQL ends
//     that transaction after the lock's timeout; then another run takes over. SQLite has
//     one writer for all requests: while another process writes, each attempt waits, and
//     gets exactlyonce.ErrInProgress after 10 s.
//
// A server whose clock is ahead by more than the lock's timeout takes over from a running
// run, whose work is lost but not duplicated.
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
