package main

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) keys() *cobra.Command {
	var q keysQuery
	c := &cobra.Command{
		Use: "keys", Short: "Show requests with idempotency keys that are not finished", Args: cobra.NoArgs,
		Long: `Show requests with idempotency keys that are not finished, the oldest first. The program's completer takes them up again.

POINT is the last step that is done, RUNS how often the request was begun, LOCKED since when one has its lock.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if q.limit < 0 {
				return usagef("-max %d must not be negative", q.limit)
			}
			return a.with(c.Context(), func(db *database) error { return a.showKeys(c.Context(), db, q) })
		},
	}
	c.Flags().BoolVar(&q.all, "all", false, "also those that are finished")
	c.Flags().StringVar(&q.user, "user", "", "only those of this `USER`")
	c.Flags().StringVar(&q.key, "key", "", "only this `KEY`")
	c.Flags().StringVar(&q.operation, "operation", "", "only those of this `OPERATION`")
	c.Flags().IntVar(&q.limit, "max", 50, "at most `N` requests; 0 for all")
	return c
}

// keysQuery are the flags that choose requests.
type keysQuery struct {
	all                  bool
	user, key, operation string
	limit                int
}

// keyJSON is a request.
type keyJSON struct {
	ID        string    `json:"id"`
	User      string    `json:"user,omitempty"`
	Key       string    `json:"key"`
	Operation string    `json:"operation"`
	Point     string    `json:"recoveryPoint"`
	Runs      int64     `json:"runs"`
	Created   time.Time `json:"created"`
	LastRun   time.Time `json:"lastRun"`
	Locked    time.Time `json:"locked,omitzero"`
	Expires   time.Time `json:"expires"`
	Finished  bool      `json:"finished"`
}

// An empty user, key or operation chooses all.
const keysSQL = `SELECT id, principal, idempotency_key, operation, recovery_point, fence, created_at, last_run_at, locked_at, expires_at,
	response IS NOT NULL FROM weir_keys
WHERE ($1 = '' OR principal = $1) AND ($2 = '' OR idempotency_key = $2) AND ($3 = '' OR operation = $3)`

func (a *app) showKeys(ctx context.Context, db *database, q keysQuery) error {
	query := keysSQL
	if !q.all {
		query += " AND response IS NULL"
	}
	query += " ORDER BY created_at, id"
	if q.limit > 0 {
		query += " LIMIT " + strconv.Itoa(q.limit+1) // one more says whether there are more
	}
	var rows [][]string
	found := 0
	err := db.each(ctx, query, func(columns *sql.Rows) error {
		var k keyJSON
		var created, lastRun, expires int64
		var locked sql.NullInt64
		err := columns.Scan(&k.ID, &k.User, &k.Key, &k.Operation, &k.Point, &k.Runs, &created, &lastRun, &locked, &expires, &k.Finished)
		if found++; err != nil || q.limit > 0 && found > q.limit {
			return err
		}
		k.Created, k.LastRun, k.Expires = time.UnixMicro(created).UTC(), time.UnixMicro(lastRun).UTC(), time.UnixMicro(expires).UTC()
		if locked.Valid {
			k.Locked = time.UnixMicro(locked.Int64).UTC()
		}
		if a.json {
			return a.object(k)
		}
		rows = append(rows, []string{when(k.Created), k.User, k.Key, k.Operation, k.Point, strconv.FormatInt(k.Runs, 10), when(k.Locked)})
		return nil
	}, q.user, q.key, q.operation)
	if err != nil {
		return err
	}
	if found == 0 {
		a.note("No request matches.")
		return nil
	}
	if !a.json {
		err = a.table([]column{
			{name: "CREATED"},
			{name: "USER", least: 4},
			{name: "KEY", least: 4},
			{name: "OPERATION", least: 4},
			{name: "POINT", least: 4},
			{name: "RUNS", right: true},
			{name: "LOCKED"},
		}, rows)
	}
	if q.limit > 0 && found > q.limit {
		a.note("There are more: -max 0 shows all.")
	}
	return err
}
