package main

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

func (a *app) keys() *cobra.Command {
	var f jobs.KeyFilter
	c := &cobra.Command{
		Use: "keys QUEUE", Short: "Count the messages of a queue by key",
		Long: `Count the messages of a queue, of its layers and of its dead letters by key, the
keys with most waiting messages first. Messages without a key are not counted.

NEXT is when the first waiting message of the key can be taken, OLDEST how long
ago the first of them arrived in the queue or layer in which it waits. weir key
list shows which keys people hold, and weir backend list which backends are
down.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("which queue? Name one: weir keys QUEUE (weir requests shows requests with idempotency keys)")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.Max < 0 {
				return usagef("--max %d must not be negative", f.Max)
			}
			if engine := a.engine(); engine != "" {
				return usagef("%s does not count by key: SQLite and PostgreSQL do. weir dead count --key KEY counts the dead letters of one key", engine)
			}
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.showKeys(ctx, db, args[0], f) })
		},
	}
	c.Flags().StringVar(&f.Contains, "contains", "", "only keys that contain this `TEXT`")
	c.Flags().IntVar(&f.Max, "max", 50, "at most `N` keys; 0 for all")
	output{a}.flag(c)
	return c
}

// keyJSON are the counts of a key.
type keyJSON struct {
	Key     string    `json:"key"`
	Waiting int       `json:"waiting"`
	Held    int       `json:"held"`
	Dead    int       `json:"dead"`
	Oldest  time.Time `json:"oldest,omitzero"`
	Next    time.Time `json:"next,omitzero"`
}

func (a *app) showKeys(ctx context.Context, db *database, queue string, f jobs.KeyFilter) error {
	engine := db.store.(inspected).Inspector // of SQLite or PostgreSQL
	limit := f.Max
	if limit == 0 {
		limit = math.MaxInt - 1
	}
	f.Max = limit + 1
	list, err := jobs.Keys(ctx, engine, queue, f)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		err = mustExist(ctx, db.store, queue)
		if err == nil {
			a.note("No key matches.")
		}
		return err
	}
	more := len(list) > limit
	list = list[:min(limit, len(list))]
	err = a.printKeys(list)
	if more {
		a.note("There are more: --max 0 shows all.")
	}
	return err
}

func (a *app) printKeys(list []store.KeyCounts) error {
	var rows [][]string
	held := 0
	for _, c := range list {
		if a.json {
			err := a.object(keyJSON(c))
			if err != nil {
				return err
			}
			continue
		}
		oldest := "-"
		if !c.Oldest.IsZero() {
			oldest = age(max(0, a.clock.Since(c.Oldest)))
		}
		held += c.Held
		rows = append(rows, []string{c.Key, strconv.Itoa(c.Waiting), oldest, when(c.Next), strconv.Itoa(c.Dead), strconv.Itoa(c.Held)})
	}
	if a.json {
		return nil
	}
	columns := []column{
		{name: "KEY", whole: true},
		{name: "WAITING", right: true},
		{name: "OLDEST", right: true},
		{name: "NEXT"},
		{name: "DEAD", right: true},
	}
	if held > 0 {
		columns = append(columns, column{name: "HELD", right: true})
	} else {
		for i := range rows {
			rows[i] = rows[i][:len(columns)]
		}
	}
	return a.table(columns, rows)
}
