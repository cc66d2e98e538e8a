package pgretry_test

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirflow/weir/ext/postgres/pgretry"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// Decisions about a failed insert, which must not happen twice.
func ExampleClassifier() {
	policy := strategies.ReasonAware(pgretry.Classifier[string](), strategies.BestEffort[string]())

	for _, err := range []error{
		&pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"},
		&pgconn.PgError{Severity: "ERROR", Code: "23505", Message: "duplicate key value"},
		&pgconn.PgError{Severity: "FATAL", Code: "57P01", Message: "terminating connection"},
	} {
		d := strategiestest.Decide(policy, predicates.Attempt[string]{Err: err})
		fmt.Printf("retry: %-5t %-25v without effect: %-5v %v\n", d.Retry, d.Reason, d.Reason.AllowsNonIdempotentRetry(), err)
	}
	// Output:
	// retry: true  SQLSTATE_40P01            without effect: true  ERROR: deadlock detected (SQLSTATE 40P01)
	// retry: false SQLSTATE_23505            without effect: true  ERROR: duplicate key value (SQLSTATE 23505)
	// retry: false CONNECTION_LOST_IN_FLIGHT without effect: false FATAL: terminating connection (SQLSTATE 57P01)
}
