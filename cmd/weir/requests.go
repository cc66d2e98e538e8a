package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/exactlyonce/keys"
)

func (a *app) requests() *cobra.Command {
	var q requestsQuery
	c := &cobra.Command{
		Use: "requests", Short: "Show requests with idempotency keys that are not finished", Args: none,
		Long: `Show requests with idempotency keys that are not finished, the oldest first. The
program's completer takes them up again until their retention is over. weir
requests end ends a request that no program will finish.

POINT is the last step that was completed, RUNS the number of times that the
request was begun, LOCKED the time since which a run has held its lock.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if q.limit < 0 {
				return usagef("--max %d must not be negative", q.limit)
			}
			if err := a.hasRequests(); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.showRequests(ctx, db, q) })
		},
	}
	c.Flags().BoolVar(&q.all, "all", false, "also finished requests")
	c.Flags().StringVar(&q.user, "user", "", "only requests of this `USER`")
	c.Flags().StringVar(&q.key, "key", "", "only this `KEY`")
	c.Flags().StringVar(&q.operation, "operation", "", "only requests of this `OPERATION`")
	output{a}.flag(c)
	c.Flags().IntVar(&q.limit, "max", 50, "at most `N` requests; 0 for all")
	c.AddCommand(a.requestsEnd())
	return c
}

func (a *app) hasRequests() error {
	if engine := a.engine(); engine != "" {
		return usagef("%s has no requests with keys: they are in the tables of a database, sqlite: or postgres://", engine)
	}
	return nil
}

func (a *app) requestsEnd() *cobra.Command {
	var q requestsQuery
	var reason string
	var yes bool
	c := &cobra.Command{
		Use: "end --reason TEXT", Short: "End a request that nobody finishes", Args: none,
		Long: `End a request that no program will finish. Check first what became of its
steps. No step of it runs afterwards, and later attempts get an answer with
status 410 that gives the reason.`,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case q == requestsQuery{}:
				return usagef("which request? Choose one with --key, --user or --operation")
			case reason == "":
				return usagef("--reason is missing: its text is the answer to later attempts")
			}
			if err := a.hasRequests(); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.endRequest(ctx, db, q, reason, yes) })
		},
	}
	c.Flags().StringVar(&q.user, "user", "", "of this `USER`")
	c.Flags().StringVar(&q.key, "key", "", "with this `KEY`")
	c.Flags().StringVar(&q.operation, "operation", "", "of this `OPERATION`")
	c.Flags().StringVar(&reason, "reason", "", "the `TEXT` that later attempts get")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (a *app) endRequest(ctx context.Context, db *database, q requestsQuery, reason string, yes bool) error {
	var found []keys.Info
	for k, err := range db.listed.List(ctx, keys.Filter{User: q.user, Key: q.key, Operation: q.operation}) {
		if err != nil {
			return err
		}
		found = append(found, k)
	}
	switch {
	case len(found) == 0:
		return errors.New("no unfinished request matches")
	case len(found) > 1:
		return fmt.Errorf("%d unfinished requests match: choose one with --key, --user or --operation", len(found))
	}
	k := found[0]
	err := a.ask(ctx, yes, fmt.Sprintf("End the request %q of %q (%s, at %s, runs: %d)?", k.Key, k.User, k.Operation, k.Point, k.Runs))
	if err != nil {
		return err
	}
	response, err := keys.JSON(http.StatusGone, map[string]any{"title": http.StatusText(http.StatusGone), "status": http.StatusGone, "detail": reason})
	if err != nil {
		return err
	}
	response.Header.Set("Content-Type", "application/problem+json") // RFC 9457
	if err := db.keys.End(ctx, k.ID, response); err != nil {
		return err
	}
	return a.print("The request has been ended\n")
}

// requestsQuery holds flags that select requests.
type requestsQuery struct {
	all                  bool
	user, key, operation string
	limit                int
}

type requestJSON struct {
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
	Status    int       `json:"status,omitempty"` // HTTP status of the response
}

func (a *app) showRequests(ctx context.Context, db *database, q requestsQuery) (err error) {
	var rows [][]string
	found := 0
	for k, failed := range db.listed.List(ctx, keys.Filter{User: q.user, Key: q.key, Operation: q.operation, Finished: q.all}) {
		if failed != nil {
			return failed
		}
		if found++; q.limit > 0 && found > q.limit {
			break
		}
		if a.json {
			err = a.object(requestJSON(k))
		} else {
			rows = append(rows, []string{when(k.Created), k.User, k.Key, k.Operation, k.Point, strconv.FormatInt(k.Runs, 10), when(k.Locked)})
		}
		if err != nil {
			return err
		}
	}
	if found == 0 {
		a.note("No request matches.")
		return nil
	}
	if !a.json {
		err = a.table([]column{
			{name: "CREATED"},
			{name: "USER", least: 4},
			{name: "KEY", whole: true},
			{name: "OPERATION", least: 4},
			{name: "POINT", least: 4},
			{name: "RUNS", right: true},
			{name: "LOCKED"},
		}, rows)
	}
	if q.limit > 0 && found > q.limit {
		a.note("There are more: --max 0 shows all.")
	}
	return err
}
