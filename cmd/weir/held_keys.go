package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
)

func (a *app) key() *cobra.Command {
	return group("key", "Keys: hold and resume them in all workers", a.keysHeld(),
		a.keyOrder("hold QUEUE KEY", "Let no worker take messages of a key until weir key resume",
			`Let no worker take messages of a key, such as a customer, from a queue or its
layers until weir key resume. The messages stay where they are, without visits.
The workers obey within two seconds, and so do workers that start later. They
finish the calls that run, with their retries. Messages can be put meanwhile.

The queue needs delivery.WithFairByKey: otherwise a hold is refused if a worker
runs. On JetStream it is always refused. weir hold --queue QUEUE --key KEY
holds the messages of the key that are there now, and weir queue pause pauses a
queue.`, (*jobs.Jobs).HoldKey),
		a.keyOrder("resume QUEUE KEY", "End the hold of a key",
			"End the hold of a key: the workers take its messages within two seconds.", (*jobs.Jobs).ResumeKey))
}

// keyOrder returns the command hold or resume.
func (a *app) keyOrder(use, short, long string, order func(j *jobs.Jobs, ctx context.Context, queue, key, by, why string) (jobs.KeyOrder, error)) *cobra.Command {
	needs := func(c *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usagef("%s needs a QUEUE and a KEY, and has %d arguments (-h for help)", named(c), len(args))
		}
		return nil
	}
	return a.workerOrder(use, short, long, needs, func(ctx context.Context, _ inspected, j *jobs.Jobs, args []string, by, why string) (any, string, error) {
		o, err := order(j, ctx, args[0], args[1], by, why)
		state := "resumed"
		if o.Held {
			state = "held"
		}
		return o, fmt.Sprintf("Key %s of queue %s is %s", escaped(o.Key), escaped(o.Queue), state), err
	})
}

func (a *app) keysHeld() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "Show the keys that are held, with who and why", Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				list, err := j.HeldKeys(ctx)
				if err != nil {
					return err
				}
				t := a.orderTable([]column{{name: "QUEUE", least: 8}, {name: "KEY", whole: true}, {name: "SINCE"}, {name: "BY", least: 5}, {name: "WHY", least: 5}}, "No key is held.")
				for _, o := range list {
					t.add(o, o.Queue, o.Key, when(o.At), o.By, o.Why)
				}
				return t.print()
			})
		},
	}
	output{a}.flag(c)
	return c
}
