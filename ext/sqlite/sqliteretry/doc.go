// Package sqliteretry names the reasons of failed calls to SQLite: whether to retry, and
// whether they may have taken effect. It knows the errors of modernc.org/sqlite, the
// driver of package sqlite.
//
//	update := asyncop.Blocking(func(ctx context.Context, r Row) (Row, error) {
//		return r, db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE rows SET done = 1 WHERE id = ?", r.ID)
//			return err
//		})
//	})
//	op := asyncop.OrderedWaitWithRetry(update, 5*time.Second, 100,
//		strategies.ReasonAware(sqliteretry.Classifier[Row](), nil))
//
// # Vocabulary
//
//	error                                    reason             a call that must not happen
//	                                                            twice may be repeated
//	SQLITE_BUSY     another process writes   SQLITE_BUSY        yes: rolled back
//	SQLITE_LOCKED   another statement writes SQLITE_LOCKED      yes: rolled back
//	SQLITE_FULL     the disk is full         SQLITE_FULL        yes: rolled back
//	SQLITE_NOMEM    out of memory            SQLITE_NOMEM       yes: rolled back
//	SQLITE_CANTOPEN the file cannot be opened SQLITE_CANTOPEN   yes: not executed
//	SQLITE_PROTOCOL locks of the log         SQLITE_PROTOCOL    yes: not executed
//	SQLITE_SCHEMA   the schema has changed   SQLITE_SCHEMA      yes: not executed
//	SQLITE_IOERR    the disk has failed      SQLITE_IOERR       no: not known
//	SQLITE_CONSTRAINT, ERROR, TOOBIG, MISMATCH, READONLY, RANGE, AUTH, PERM, CORRUPT, NOTADB, MISUSE
//	                                         a rejection,       is not repeated: refused for good,
//	                                         SQLITE_CONSTRAINT  without effect
//	others                                   none
//
// Extended codes, such as SQLITE_CONSTRAINT_UNIQUE, count as the code that they extend;
// [Code] returns the extended code. A statement that its context has interrupted
// (SQLITE_INTERRUPT) has no reason.
//
// The table holds for a call that is one transaction: SQLite rolls back a transaction
// that fails. A call that commits several times reports its stage
// (predicates.ReportStage): a refusal does not undo an earlier commit.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
//
// # Sources
//
// The result codes in the documentation of SQLite.
package sqliteretry
