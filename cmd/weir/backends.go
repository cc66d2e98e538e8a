package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
)

func (a *app) backend() *cobra.Command {
	return group("backend", "Backends: the services that workers call", a.backendList(),
		a.backendOrder("hold NAME", "Let no call start in any worker until weir backend resume", 1),
		a.backendOrder("resume NAME", "End a hold: the workers try the service, and their load grows back", 1), a.backendOpen(),
		a.backendOrder("limit NAME N", "Let a worker make N calls at a time; none ends that", 2))
}

func (a *app) backendList() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "Show the backends of all workers", Args: none,
		Long: `Show the backends of all workers. Each worker reports every 20 s how its backend
is. SEEN is the age of its report, which may be older than the last order. If
workers share a limit (backend.Shared), the backend has a row of its own, with
the workers below it. The orders hold, resume and limit reach workers within two
seconds, and workers that start later. A shared limit of N is for all its
workers together.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				rows, err := a.backendRows(ctx, j)
				if err != nil || a.json {
					return err
				}
				if len(rows) == 0 {
					a.note("No worker has a backend.")
					return nil
				}
				return a.table([]column{
					{name: "BACKEND", whole: true},
					{name: "WORKER"},
					{name: "SEEN", right: true},
					{name: "STATE"},
					{name: "SINCE"},
					{name: "LIMIT", right: true},
					{name: "IN USE", right: true},
					{name: "WHY", least: 5},
				}, rows)
			})
		},
	}
	output{a}.flag(c)
	return c
}

// backendRows returns a row for each backend of a worker, below a row for all processes
// that share it, and a row for each order of a backend that no worker has.
func (a *app) backendRows(ctx context.Context, j *jobs.Jobs) (rows [][]string, err error) {
	workers, err := j.Workers(ctx)
	if err != nil {
		return nil, err
	}
	orders, err := j.BackendOrders(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range jobs.Services(workers, a.clock.Now()) {
		var last jobs.BackendOrder
		at := slices.IndexFunc(orders, func(o jobs.BackendOrder) bool { return o.Backend == s.Name })
		if at >= 0 {
			last = orders[at]
			orders = slices.Delete(orders, at, at+1)
		}
		if s.IsShared {
			rows = append(rows, []string{s.Name, processes(s), "", stateOf(s), when(s.Since), strconv.Itoa(s.Limit), strconv.Itoa(s.InUse), s.Why})
		}
		for _, p := range s.Processes {
			if a.json {
				if err := a.object(struct {
					jobs.Backend
					Worker string `json:"worker"`
				}{p.Backend, p.Worker}); err != nil {
					return nil, err
				}
			}
			rows = append(rows, processRow(p, last, a.clock.Now()))
		}
	}
	for _, o := range orders {
		if a.json {
			if err := a.object(o); err != nil {
				return nil, err
			}
		}
		state, limit := "", ""
		if o.Held != "" {
			state = "held"
		}
		if o.Limit != nil {
			limit = strconv.Itoa(*o.Limit)
		}
		if state != "" || limit != "" {
			rows = append(rows, []string{o.Backend, "none", "", state, when(o.At), limit, "", o.Held})
		}
	}
	return rows, nil
}

// processRow returns the row of a worker that reported its backend, perhaps before the
// last order.
func processRow(p jobs.ServiceProcess, last jobs.BackendOrder, now time.Time) []string {
	limit := strconv.Itoa(p.Limit)
	if p.Limit < 0 {
		limit = "none"
	}
	why := p.Why
	if last.At.After(p.Seen) {
		why = fmt.Sprintf("reported before the last order (%s)", last.Event)
	}
	return []string{p.Name, p.Worker, since(now, p.Seen), stateOfProcess(p), when(p.Since), limit, strconv.Itoa(p.InUse), why}
}

// backendOpen returns the hidden command open, resume's former name, which warns.
func (a *app) backendOpen() *cobra.Command {
	c := a.backendOrder("open NAME", "The former name of weir backend resume", 1)
	c.Hidden = true
	order := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		a.note("weir backend open is called weir backend resume now; the next version of weir does not have the old name.")
		return order(c, args)
	}
	return c
}

// backendOrder returns a command with n arguments: hold, resume or limit.
func (a *app) backendOrder(use, short string, n int) *cobra.Command {
	var p person
	var isNew bool
	c := &cobra.Command{
		Use: use, Short: short,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != n {
				return usagef("%s: want %s (-h for help)", named(c), c.Use)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			by, why := p.read(c)
			limit := -1
			if n == 2 && args[1] != "none" {
				var err error
				limit, err = strconv.Atoi(args[1])
				if err != nil || limit < 0 {
					return usagef("%q is neither a number of calls nor none", args[1])
				}
			}
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) (err error) {
				if !isNew {
					err = mustBeBackend(ctx, j, args[0])
					if err != nil {
						return err
					}
				}
				var o jobs.BackendOrder
				switch c.Name() {
				case "hold":
					o, err = j.HoldBackend(ctx, args[0], by, why)
				case "resume", "open":
					o, err = j.ResumeBackend(ctx, args[0], by, why)
				default:
					o, err = j.LimitBackend(ctx, args[0], limit, by, why)
				}
				if err != nil {
					return err
				}
				return a.ordered(ctx, j, o)
			})
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&isNew, "new", false, "even if no worker has a backend of this name yet")
	return c
}

// ordered prints an order, and how many workers have the backend.
func (a *app) ordered(ctx context.Context, j *jobs.Jobs, o jobs.BackendOrder) error {
	if a.json {
		return a.object(o)
	}
	workers, err := j.Workers(ctx)
	if err != nil {
		return err
	}
	have, silent := 0, 0
	of := "a worker"
	for _, s := range jobs.Services(workers, a.clock.Now()) {
		if s.Name != o.Backend {
			continue
		}
		have = s.Reporting
		silent = len(s.Processes) - s.Reporting
		if s.IsShared {
			of = "in all workers together"
		}
	}
	state, limit := "not held", ""
	if o.Held != "" {
		state = "held"
	}
	if o.Limit != nil {
		limit = fmt.Sprintf(", with a limit of %s %s", counts(*o.Limit, "call", "calls"), of)
	}
	return a.print(fmt.Sprintf("Backend %s is %s%s: %s it%s\n", escaped(o.Backend), state, limit,
		counts(have, "worker has", "workers have"), andSilent(silent)))
}

// mustBeBackend returns an error if a backend's name is probably mistyped: other backends
// are known by a worker's report or by an order, and this one is not.
func mustBeBackend(ctx context.Context, j *jobs.Jobs, name string) error {
	workers, err := j.Workers(ctx)
	if err != nil {
		return err
	}
	orders, err := j.BackendOrders(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, w := range workers {
		for _, b := range w.Backends {
			names = append(names, b.Name)
		}
	}
	for _, o := range orders {
		names = append(names, o.Backend)
	}
	if len(names) == 0 || slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("no worker has a backend %q: the backends are %s. With --new the order waits for workers that start later",
		name, quotedNames(names))
}
