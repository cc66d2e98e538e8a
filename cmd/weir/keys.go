package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
)

func (a *app) keys() *cobra.Command {
	var f jobs.KeyFilter
	c := &cobra.Command{
		Use: "keys QUEUE", Short: "Count the messages of a queue by key",
		Long: `Count the messages of a queue, of its layers and of its dead letters by key, the
keys with most waiting messages first. Messages without a key are not counted.

NEXT is when the first waiting message of the key can be taken, OLDEST how long
ago the first of them arrived in the queue or layer in which it waits.

Keys that people hold (weir key hold), or that workers report to be down
(backend.TenantBreaker), come first, even if they do not have messages. STATE,
SINCE and WHY show that. Workers report every 20 s, each the 256 keys that have
been down for longest.`,
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

type keyJSON struct {
	Key     string         `json:"key"`
	Waiting int            `json:"waiting"`
	Held    int            `json:"held"`
	Dead    int            `json:"dead"`
	Oldest  time.Time      `json:"oldest,omitzero"`
	Next    time.Time      `json:"next,omitzero"`
	Hold    *jobs.KeyOrder `json:"hold,omitempty"`
	Down    *jobs.KeyDown  `json:"down,omitempty"`
}

func newKeyJSON(s *jobs.KeyState) keyJSON {
	return keyJSON{
		Key: s.Key, Waiting: s.Waiting, Held: s.KeyCounts.Held, Dead: s.Dead, Oldest: s.Oldest, Next: s.Next, Hold: s.Hold, Down: s.Down,
	}
}

func (a *app) showKeys(ctx context.Context, db *database, queue string, f jobs.KeyFilter) error {
	j, err := db.store.(inspected).jobs() // of SQLite or PostgreSQL
	if err != nil {
		return err
	}
	limit := f.Max
	if limit == 0 {
		limit = math.MaxInt - 1
	}
	f.Max = limit + 1
	list, err := j.KeyStates(ctx, queue, f)
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

func (a *app) printKeys(list []jobs.KeyState) error {
	if a.json {
		for i := range list {
			err := a.object(newKeyJSON(&list[i]))
			if err != nil {
				return err
			}
		}
		return nil
	}
	held := 0          // messages
	isStopped := false // a key is held or down
	for i := range list {
		held += list[i].KeyCounts.Held
		isStopped = isStopped || !list[i].IsCalled()
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
	}
	if isStopped {
		columns = append(columns, column{name: "STATE"}, column{name: "SINCE", right: true}, column{name: "WHY", least: 10})
	}
	var rows [][]string
	for i := range list {
		c := list[i].KeyCounts
		row := []string{c.Key, strconv.Itoa(c.Waiting), since(a.clock.Now(), c.Oldest), when(c.Next), strconv.Itoa(c.Dead)}
		if held > 0 {
			row = append(row, strconv.Itoa(c.Held))
		}
		if isStopped {
			row = append(row, a.whyStopped(list[i].Hold, list[i].Down)...)
		}
		rows = append(rows, row)
	}
	return a.table(columns, rows)
}

// whyStopped returns a key's cells STATE, SINCE and WHY. A hold replaces an outage.
func (a *app) whyStopped(hold *jobs.KeyOrder, down *jobs.KeyDown) []string {
	now := a.clock.Now()
	switch {
	case hold != nil && hold.By == "": // the order cannot be read
		return []string{"held", "-", hold.Why}
	case hold != nil:
		return []string{"held", since(now, hold.At), fmt.Sprintf("%s (%s)", hold.Why, hold.By)}
	case down != nil && down.In < down.Workers:
		return []string{fmt.Sprintf("%s in %d of %s", down.State, down.In, counts(down.Workers, "worker", "workers")), since(now, down.Since), down.Why}
	case down != nil:
		return []string{down.State, since(now, down.Since), down.Why}
	}
	return []string{"", "", ""}
}
