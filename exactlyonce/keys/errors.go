package keys

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/sqlmigrate"
)

var (
	// errLockLost reports that another run has taken over, because this run was slower
	// than the lock's timeout. Its last step was rolled back.
	errLockLost = fmt.Errorf("keys: another run has taken over the request: %w", exactlyonce.ErrInProgress)

	// errConflict reports that a transaction failed too often because of others.
	errConflict = fmt.Errorf("keys: conflict with concurrent transactions: %w", exactlyonce.ErrInProgress)
)

// refusal is the error of a step refused by its run, to distinguish it from an error of
// the same class by another service.
type refusal struct {
	run *Run
	err error // errLockLost or errConflict
}

func (r *Run) refuse(err error) error { return &refusal{r, err} }

// refused reports whether err, perhaps wrapped by the handler, is a refusal of class by
// this run.
func (r *Run) refused(err, class error) bool { return errors.Is(err, &refusal{r, class}) }

func (e *refusal) Error() string { return e.err.Error() }

func (e *refusal) Unwrap() error { return e.err }

func (e *refusal) Is(target error) bool {
	t, ok := target.(*refusal)
	return ok && t.run == e.run && errors.Is(e.err, t.err)
}

func explain(err error) error {
	return sqlmigrate.Explain(err, "keys.Keys.Migrate", "weir_keys", "weir_key_steps")
}

// codeError is an error of an SQLite driver. The low byte is the primary code.
type codeError interface {
	error
	Code() int
}

// isConflict reports whether a transaction that failed with err can be repeated
// unchanged.
func isConflict(err error) bool {
	if e, ok := errors.AsType[sqlmigrate.StateError](err); ok {
		return e.SQLState() == "40001" || e.SQLState() == "40P01"
	}
	if e, ok := errors.AsType[codeError](err); ok {
		const busy, locked = 5, 6 // SQLite's codes
		return e.Code()&0xff == busy || e.Code()&0xff == locked
	}
	return false
}
