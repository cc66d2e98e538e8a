// Package failover removes connections to servers that take no writes from pools.
package failover

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ReadOnly is the SQLSTATE of a write on a standby.
const ReadOnly = "25006"

// Reset closes the connections of pool if err is an answer of a standby, as after a
// failover. Connections in use are closed on release; new ones may reach the primary.
func Reset(pool *pgxpool.Pool, err error) {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if ok && e.Code == ReadOnly {
		pool.Reset()
	}
}
