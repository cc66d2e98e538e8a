package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
)

func (a *app) queue() *cobra.Command {
	return group("queue", "Queues: pause and resume them in all workers", a.queuesPaused(), a.queuePause(), a.queueResume())
}

func (a *app) queuePause() *cobra.Command {
	isNew := false
	c := a.queueOrder("pause QUEUE", "Let no worker receive messages of a queue until weir queue resume",
		`Let no worker receive messages of a queue, or of its layers, until weir queue
resume. The workers obey within two seconds, and so do workers that start later.
They finish the calls that run, with their retries. Messages can be put
meanwhile. Workers of an earlier version of weir do not obey.

A queue that has neither messages nor workers is refused, because its name may
be mistyped. To pause it before its first worker starts, give --new.`,
		func(ctx context.Context, s inspected, j *jobs.Jobs, queue, by, why string) (jobs.QueueOrder, error) {
			if !isNew {
				others, err := othersThan(ctx, s, queue)
				if err != nil {
					return jobs.QueueOrder{}, err
				}
				if others != "" {
					return jobs.QueueOrder{}, fmt.Errorf("queue %q has no messages and no workers: the queues are %s (--new pauses a queue before its first worker starts)", queue, others)
				}
			}
			return j.PauseQueue(ctx, queue, by, why)
		})
	c.Flags().BoolVar(&isNew, "new", false, "pause the queue even if it has neither messages nor workers")
	return c
}

func (a *app) queueResume() *cobra.Command {
	return a.queueOrder("resume QUEUE", "End the pause of a queue",
		"End the pause of a queue: the workers receive its messages within two seconds.",
		func(ctx context.Context, _ inspected, j *jobs.Jobs, queue, by, why string) (jobs.QueueOrder, error) {
			return j.ResumeQueue(ctx, queue, by, why)
		})
}

func (a *app) queuesPaused() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "Show the queues that are paused, with who and why", Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				list, err := j.PausedQueues(ctx)
				if err != nil {
					return err
				}
				t := a.orderTable([]column{{name: "QUEUE", whole: true}, {name: "SINCE"}, {name: "BY", least: 5}, {name: "WHY", least: 5}}, "No queue is paused.")
				for _, o := range list {
					t.add(o, o.Queue, when(o.At), o.By, o.Why)
				}
				return t.print()
			})
		},
	}
	output{a}.flag(c)
	return c
}

func (a *app) queueOrder(use, short, long string, order func(ctx context.Context, s inspected, j *jobs.Jobs, queue, by, why string) (jobs.QueueOrder, error)) *cobra.Command {
	return a.workerOrder(use, short, long, one("QUEUE"), func(ctx context.Context, s inspected, j *jobs.Jobs, args []string, by, why string) (any, string, error) {
		o, err := order(ctx, s, j, args[0], by, why)
		state := "resumed"
		if o.Paused {
			state = "paused"
		}
		return o, fmt.Sprintf("Queue %s is %s", escaped(o.Queue), state), err
	})
}

// workerOrder returns a command with an order to the workers of a queue, its first
// argument. order returns the order, and describes its effect.
func (a *app) workerOrder(use, short, long string, args cobra.PositionalArgs, order func(ctx context.Context, s inspected, j *jobs.Jobs, args []string, by, why string) (o any, effect string, err error)) *cobra.Command {
	var p person
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Args: args,
		RunE: func(c *cobra.Command, args []string) error {
			by, why := p.read(c)
			return a.withJobs(c, func(ctx context.Context, s inspected, j *jobs.Jobs) error {
				o, effect, err := order(ctx, s, j, args, by, why)
				if err != nil {
					return err
				}
				if a.json {
					return a.object(o)
				}
				workers, err := j.Workers(ctx)
				if err != nil {
					return err
				}
				read, silent := readersOf(args[0], workers, a.clock.Now())
				return a.print(fmt.Sprintf("%s: %s it%s\n", effect, counts(read, "worker reads", "workers read"), andSilent(silent)))
			})
		},
	}
	p.flags(c)
	return c
}

// orderTable is a list of orders to print.
type orderTable struct {
	app     *app
	columns []column
	none    string // printed in place of an empty table
	orders  []any
	rows    [][]string
}

func (a *app) orderTable(columns []column, none string) *orderTable {
	return &orderTable{app: a, columns: columns, none: none}
}

func (t *orderTable) add(order any, row ...string) {
	t.orders = append(t.orders, order)
	t.rows = append(t.rows, row)
}

// print prints the table, or the orders as JSON.
func (t *orderTable) print() error {
	if t.app.json {
		for _, o := range t.orders {
			err := t.app.object(o)
			if err != nil {
				return err
			}
		}
		return nil
	}
	if len(t.rows) == 0 {
		t.app.note(t.none)
		return nil
	}
	return t.app.table(t.columns, t.rows)
}

// readersOf returns how many workers report that they read a queue, and how many others
// reported it and are silent at now.
func readersOf(queue string, workers []jobs.Worker, now time.Time) (read, silent int) {
	for _, w := range workers {
		switch {
		case !w.Takes(queue):
		case now.Sub(w.Seen) > jobs.SilentAfter:
			silent++
		default:
			read++
		}
	}
	return read, silent
}

// andSilent describes silent workers behind a count of the others.
func andSilent(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d silent)", n)
}
