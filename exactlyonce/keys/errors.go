package keys

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/sqlmigrate"
)

var (
	// errLockLost reports that another run has taken over the request, since this run was slower than the lock's timeout. Its last step was
	// rolled back.
	errLockLost = fmt.Errorf("keys: another run has taken over the request: %w", exactlyonce.ErrInProgress)

	// errConflict reports that a transaction was tried again too often because of others.
	errConflict = fmt.Errorf("keys: conflict with concurrent transactions: %w", exactlyonce.ErrInProgress)
)

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
