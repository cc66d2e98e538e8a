// Package pgretry names the reasons of failed calls to PostgreSQL: whether to retry, and
// whether they may have taken effect. It knows the errors of pgx, also under database/sql
// (pgx/stdlib), and the SQLSTATE of lib/pq.
//
// A non-idempotent insert that is repeated only if that is safe:
//
//	insert := asyncop.Blocking(func(ctx context.Context, o Order) (Order, error) {
//		_, err := pool.Exec(ctx, "INSERT INTO orders (id, total) VALUES ($1, $2)", o.ID, o.Total)
//		return o, err
//	})
//	op := asyncop.OrderedWaitWithRetry(insert, 5*time.Second, 1000,
//		strategies.ReasonAware(pgretry.Classifier[Order](), nil))
//
// # Vocabulary
//
//	error                                    reason                 a call that must not happen
//	                                                                twice may be repeated
//	no connection (ConnectError)             netretry.NotConnected  yes
//	not sent (SafeToRetry, ErrBadConn)       netretry.NotConnected  yes
//	40001 serialization_failure              SQLSTATE_40001         yes: rolled back
//	40P01 deadlock_detected                  SQLSTATE_40P01         yes: rolled back
//	55P03 lock_not_available                 SQLSTATE_55P03         yes: rolled back
//	53… insufficient_resources               SQLSTATE_53…           yes: rolled back
//	57P03 cannot_connect_now                 SQLSTATE_57P03         yes: not executed
//	25006 read_only_sql_transaction          SQLSTATE_25006         yes: refused by a standby
//	26000, 42P05, and 0A000 of a cached plan  SQLSTATE_26000        yes: not executed
//	57P01 and other FATAL errors             netretry.ConnectionLost  no: not known
//	lost, timed out                          netretry.ConnectionLost, TimedOut  no: not known
//	other 0A, 21, 22, 23, 28, 3D, 3F, 42, 44, 54,  a rejection,           is not repeated: refused for good,
//	P0, 57014                                SQLSTATE_23505         without effect
//	others                                   none
//
// A class of SQLSTATE is its first two characters: 23 are violated constraints, 22 data
// that cannot be stored, 42 errors in the statement. 57014 is a cancelled statement,
// usually by statement_timeout; to retry it, give it a reason in a table before this
// classifier:
//
//	predicates.ByCode(pgretry.SQLState[Order](), map[string]predicates.Reason{"57014": slow})
//
// While connecting, the codes of the first group and FATAL errors are
// netretry.NotConnected, too: a server that starts or stops, a standby in place of a
// primary. A wrong password or an unknown database is a rejection.
//
// # Guarantees
//
// Calls that must not happen twice need pgx. lib/pq (v1.10.9) returns driver.ErrBadConn
// even for connections that end in flight, and for a COMMIT, so calls that were executed
// may be repeated, by database/sql itself too.
//
// If PostgreSQL answers with an error, it has rolled back the statement, or its
// transaction. So the table holds for a call that is one statement or one transaction. A
// call that commits several times needs a [Tracer], or reports its stage
// (predicates.ReportStage): a later refusal does not undo an earlier statement. Effects
// outside of transactions, such as a procedure that commits or dblink, are not seen.
//
// If a call joins errors, the error that allows least decides: see predicates.Classifier.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
//
// # Sources
//
// The list of SQLSTATEs in the appendix of the PostgreSQL documentation, and pgconn of
// pgx v5.
package pgretry
