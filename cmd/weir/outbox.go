package main

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/store"
)

func (a *app) outbox() *cobra.Command {
	return &cobra.Command{
		Use: "outbox [QUEUE]...", Short: "Show outboxes: what is staged, and which relay sends it",
		Long: `Show outboxes: what is staged, and which relay sends it. Without an argument these are the queues that a relay has ever had.

RELAY is the owner of the queue's lock, and UNTIL when its lease ends: another relay takes over after that.`,
		RunE: func(c *cobra.Command, queues []string) error {
			return a.with(c.Context(), func(db *database) error { return a.showOutboxes(c.Context(), db, queues) })
		},
	}
}

// outboxJSON is an outbox.
type outboxJSON struct {
	Queue    string    `json:"queue"`
	Messages int       `json:"messages"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Age      float64   `json:"ageSeconds,omitzero"`
	Relay    string    `json:"relay,omitempty"`
	Fence    int64     `json:"fence,omitempty"`
	Until    time.Time `json:"until,omitzero"`
}

func (a *app) showOutboxes(ctx context.Context, db *database, queues []string) error {
	locks, err := db.locks(ctx)
	if err != nil {
		return err
	}
	if len(queues) == 0 {
		for _, l := range locks {
			queues = append(queues, l.name)
		}
	}
	var rows [][]string
	for _, queue := range queues {
		n, err := db.store.Count(ctx, queue, store.Filter{})
		if err != nil {
			return err
		}
		var l heldLock
		if i := slices.IndexFunc(locks, func(l heldLock) bool { return l.name == queue }); i >= 0 {
			l = locks[i]
		}
		if a.json {
			err := a.object(outboxJSON{queue, n.Messages, n.Oldest, n.Age.Seconds(), l.owner, l.fence, l.until})
			if err != nil {
				return err
			}
			continue
		}
		oldest, relay := "-", l.owner
		if n.Messages > 0 {
			oldest = age(n.Age)
		}
		if relay == "" {
			relay = "none"
		}
		rows = append(rows, []string{queue, strconv.Itoa(n.Messages), oldest, relay, when(l.until)})
	}
	switch {
	case a.json:
		return nil
	case len(rows) == 0:
		a.note("No relay has ever had an outbox here; name the queues.")
		return nil
	}
	return a.table([]column{
		{name: "QUEUE", least: 12},
		{name: "MESSAGES", right: true},
		{name: "OLDEST", right: true},
		{name: "RELAY", least: 10},
		{name: "UNTIL"},
	}, rows)
}

// heldLock is a lock; one that was given back has neither owner nor end.
type heldLock struct {
	name, owner string
	fence       int64
	until       time.Time
}

// locks returns the locks in order of their names.
func (db *database) locks(ctx context.Context) (all []heldLock, err error) {
	err = db.each(ctx, "SELECT name, owner, fence, until FROM weir_locks ORDER BY name", func(rows *sql.Rows) error {
		var l heldLock
		var until any
		if err := rows.Scan(&l.name, &l.owner, &l.fence, &until); err != nil {
			return err
		}
		if l.owner != "" {
			l.until = db.time(until, time.Nanosecond)
		}
		all = append(all, l)
		return nil
	})
	return all, err
}

// each calls f for each row of a query.
func (db *database) each(ctx context.Context, query string, f func(rows *sql.Rows) error, args ...any) error {
	rows, err := db.sql.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := f(rows); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}
