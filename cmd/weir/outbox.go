package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
)

func (a *app) outbox() *cobra.Command {
	c := &cobra.Command{
		Use: "outbox [QUEUE]...", Short: "Show outboxes: their staged messages and their relays",
		Long: `Show outboxes: their staged messages, the relay that sends them, and why it
cannot. Without an argument these are the queues that a relay has now: an outbox
whose relay has died must be named.

RELAY is the owner of the queue's lock. If it does not extend its LEASE within
that time, another relay takes over.`,
		RunE: func(c *cobra.Command, queues []string) error {
			if engine := a.engine(); engine != "" && engine != "JetStream" {
				return usagef("%s has no outboxes: their messages are in a store with transactions", engine)
			}
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.showOutboxes(ctx, db, queues) })
		},
	}
	output{a}.flag(c)
	return c
}

type outboxJSON struct {
	Queue    string    `json:"queue"`
	Messages int       `json:"messages"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Age      float64   `json:"ageSeconds,omitzero"`
	Relay    string    `json:"relay,omitempty"`
	Fence    uint64    `json:"fence,omitempty"`
	Lease    float64   `json:"leaseSeconds,omitzero"`
	Error    string    `json:"lastError,omitempty"`
}

// relays returns the outboxes of relays, with the error of the last failed publication,
// reported every 20 s.
func (a *app) relays(ctx context.Context, db *database) (map[string]string, error) {
	in, ok := db.store.(inspected)
	if !ok || !in.keeps() {
		return nil, nil
	}
	j, err := in.jobs()
	if err != nil {
		return nil, err
	}
	workers, err := j.Workers(ctx)
	found := map[string]string{}
	for _, w := range workers {
		if w.Outbox != "" {
			_, last := operatorsOf(w)
			found[w.Outbox] = cmp.Or(last, found[w.Outbox])
		}
	}
	return found, err
}

func (a *app) showOutboxes(ctx context.Context, db *database, queues []string) error {
	if db.locks == nil {
		return usagef("the URL of the database: it has no outboxes, as it has no locks")
	}
	held, err := db.locks.Held(ctx, "")
	if err != nil {
		return err
	}
	relays, err := a.relays(ctx, db)
	if err != nil && !lacksTable(err) { // relays of an earlier version have no table
		return err
	}
	if len(queues) == 0 {
		queues = slices.Collect(maps.Keys(relays))
		for _, h := range held {
			if !strings.HasPrefix(h.Name, "weir-jobs/") && !slices.Contains(queues, h.Name) {
				queues = append(queues, h.Name)
			}
		}
		slices.Sort(queues)
	}
	var rows [][]string
	for _, queue := range queues {
		n, err := db.store.Count(ctx, queue, store.Filter{})
		if err != nil {
			return err
		}
		var h lock.Holding
		if i := slices.IndexFunc(held, func(h lock.Holding) bool { return h.Name == queue }); i >= 0 {
			h = held[i]
		}
		if a.json {
			err := a.object(outboxJSON{queue, n.Messages, n.Oldest, n.Age.Seconds(), h.Owner, h.Fence, h.For.Seconds(), relays[queue]})
			if err != nil {
				return err
			}
			continue
		}
		oldest := "-"
		relay := "none"
		lease := "-"
		if n.Messages > 0 {
			oldest = age(n.Age)
		}
		if h.Owner != "" {
			relay, lease = h.Owner, age(h.For)
		}
		rows = append(rows, []string{queue, strconv.Itoa(n.Messages), oldest, relay, lease, relays[queue]})
	}
	switch {
	case a.json:
		return nil
	case len(rows) == 0:
		a.note("No relay has an outbox here now; name the queues.")
		return nil
	}
	columns := []column{
		{name: "QUEUE", whole: true},
		{name: "MESSAGES", right: true},
		{name: "OLDEST", right: true},
		{name: "RELAY", least: 10},
		{name: "LEASE", right: true},
		{name: "LAST ERROR", least: 10, error: true},
	}
	if !slices.ContainsFunc(rows, func(row []string) bool { return row[len(row)-1] != "" }) {
		columns = columns[:len(columns)-1]
		for i := range rows {
			rows[i] = rows[i][:len(columns)]
		}
	}
	return a.table(columns, rows)
}
