package keys

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/internal/sqlmigrate"
)

var (
	// ErrInvalid is the class of requests without a key, or with a field that is too long or not text. The request was not stored.
	ErrInvalid = errors.New("keys: invalid request")

	// ErrLockLost reports that another run has taken over the request, since this run was slower than the lock's timeout. Its last step was
	// rolled back.
	ErrLockLost = errors.New("keys: another run has taken over the request")

	// ErrConflict reports that a transaction was tried again too often because of others. The request may be repeated.
	ErrConflict = errors.New("keys: conflict with concurrent transactions")
)

// RecoveryPointError reports that a handler does not have the steps that its request has done: the handler was changed, or decides by a value
// that differs between runs. It is a bug. The request is unlocked and not finished.
type RecoveryPointError struct {
	Operation string
	ID        string // of the request
	Position  int    // of the step, from 1
	Stored    string // the step that the request has done there; "" if none
	Asked     string // the step that the handler asks for; finished if it has ended
}

// Error names both steps.
func (e *RecoveryPointError) Error() string {
	return fmt.Sprintf("keys: bug in operation %s: request %s has done %q as its step %d, the handler asks for %q",
		e.Operation, e.ID, e.Stored, e.Position, e.Asked)
}

func explain(err error) error {
	return sqlmigrate.Explain(err, "keys.Keys.Migrate", "weir_keys", "weir_key_steps")
}

// isConflict reports whether a transaction that failed with err can be tried again as it is.
func isConflict(err error) bool {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState() == "40001" || e.SQLState() == "40P01"
	}
	if e, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
		const busy, locked = 5, 6 // of SQLite
		return e.Code()&0xff == busy || e.Code()&0xff == locked
	}
	return false
}
