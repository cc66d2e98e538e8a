package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/store"
)

func (a *app) layers() *cobra.Command {
	c := &cobra.Command{
		Use: "layers [QUEUE]...", Short: "Show the queues: layers, dead letters, staged messages",
		Long: `Show the queues of the store: the layers of ladders, dead letters, staged
messages. Queues without messages do not appear.

NEXT is when the first message can be taken: its delay is over, or the lease of
the one who has it.`,
		RunE: func(c *cobra.Command, queues []string) error {
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.showLayers(ctx, db, queues) })
		},
	}
	output{a}.flag(c)
	return c
}

func (a *app) showLayers(ctx context.Context, db *database, queues []string) error {
	if len(queues) == 0 {
		var err error
		queues, err = db.store.Queues(ctx)
		if err != nil {
			return err
		}
	}
	var rows [][]string
	var unknown []error
	held := 0
	for _, queue := range queues {
		n, err := db.store.Count(ctx, queue, store.Filter{})
		if err != nil {
			return err
		}
		if n.Messages == 0 {
			if err := mustExist(ctx, db.store, queue); err != nil {
				unknown = append(unknown, err)
				continue
			}
		}
		if a.json {
			counted := newCounted(queue, n)
			counted.Next = n.Next
			if err := a.object(counted); err != nil {
				return err
			}
			continue
		}
		oldest := "-"
		if n.Messages > 0 {
			oldest = age(n.Age)
		}
		held += n.Held
		rows = append(rows, []string{queue, strconv.Itoa(n.Messages), oldest, when(n.Next), causes(n), strconv.Itoa(n.Held)})
	}
	switch {
	case a.json || len(rows) == 0 && len(unknown) > 0:
		return errors.Join(unknown...)
	case len(rows) == 0:
		a.note("No queue has messages.")
		return nil
	}
	columns := []column{
		{name: "QUEUE", whole: true},
		{name: "MESSAGES", right: true},
		{name: "OLDEST", right: true},
		{name: "NEXT"},
		{name: "CAUSES", least: 10},
	}
	if held > 0 {
		columns = append(columns, column{name: "HELD", right: true})
	} else {
		for i := range rows {
			rows[i] = rows[i][:len(columns)]
		}
	}
	return errors.Join(append([]error{a.table(columns, rows)}, unknown...)...)
}

func causes(n store.Counts) string {
	var parts []string
	for _, cause := range byNumber(n.Causes) {
		if cause != "" {
			parts = append(parts, strconv.Itoa(n.Causes[cause])+" "+cause.String())
		}
	}
	return strings.Join(parts, ", ")
}
