package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
)

func (a *app) jobs() *cobra.Command {
	return group("jobs", "Jobs: actions on many messages",
		a.jobsList(), a.jobsShow(), a.jobsRun(),
		a.jobsOrder("pause", "Stop a job, until it is resumed", (*jobs.Jobs).Pause),
		a.jobsOrder("resume", "Continue a paused job: the workers find it within 20 s", (*jobs.Jobs).Resume),
		a.jobsOrder("cancel", "End a job: the messages that it has handled stay as they are", (*jobs.Jobs).Cancel), a.jobsRate())
}

// withJobs opens the database and calls f with its jobs.
func (a *app) withJobs(c *cobra.Command, f func(ctx context.Context, s inspected, j *jobs.Jobs) error) error {
	return a.with(c.Context(), func(ctx context.Context, db *database) error {
		s, ok := db.store.(inspected)
		if !ok || !s.keeps() {
			return usagef("%s keeps no jobs and no workers: they are in databases of sqlite:, postgres:// and nats://", a.engine())
		}
		j, err := s.jobs()
		if err != nil {
			return err
		}
		return f(ctx, s, j)
	})
}

func jobID(arg string) (int, error) {
	id, err := strconv.Atoi(arg)
	if err != nil || id < 1 {
		return 0, usagef("%q is not the number of a job: weir jobs list shows them", arg)
	}
	return id, nil
}

func (a *app) jobsList() *cobra.Command {
	var open bool
	c := &cobra.Command{
		Use: "list", Short: "List jobs, the newest first", Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				list, err := j.List(ctx)
				if err != nil {
					return err
				}
				var rows [][]string
				for _, job := range list {
					if open && !job.Ended.IsZero() {
						continue
					}
					if a.json {
						if err := a.object(job); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, []string{
						strconv.Itoa(job.ID), when(job.Begun), actionOf(job.Spec), job.Queue, job.State(),
						strconv.Itoa(job.Done), totalOf(&job), job.By, job.Why,
					})
				}
				if a.json {
					return nil
				}
				if len(rows) == 0 {
					a.note("There are no jobs.")
					return nil
				}
				return a.table([]column{
					{name: "JOB", right: true, whole: true},
					{name: "BEGUN"},
					{name: "DO"},
					{name: "QUEUE", least: 8},
					{name: "STATE"},
					{name: "DONE", right: true},
					{name: "OF", right: true},
					{name: "BY", least: 5},
					{name: "WHY", least: 5},
				}, rows)
			})
		},
	}
	c.Flags().BoolVar(&open, "open", false, "only jobs that have not ended")
	output{a}.flag(c)
	return c
}

// totalOf returns the number of a job's messages, or "-" if they are not counted yet.
func totalOf(job *jobs.Job) string {
	if job.Uncounted {
		return "-"
	}
	_, of := job.Reached()
	return strconv.Itoa(of)
}

// doneOf returns the progress of a job.
func doneOf(job *jobs.Job) string {
	if job.Uncounted {
		return strconv.Itoa(job.Done)
	}
	return fmt.Sprintf("%d of %s", job.Done, totalOf(job))
}

func (a *app) jobsShow() *cobra.Command {
	return &cobra.Command{
		Use: "show JOB", Short: "Show a job", Args: one("JOB"),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := jobID(args[0])
			if err != nil {
				return err
			}
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				job, err := j.Get(ctx, id)
				if err != nil {
					return err
				}
				return a.showJob(job)
			})
		},
	}
}

func (a *app) showJob(job jobs.Job) error {
	if a.json {
		return a.object(job)
	}
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-15s %s\n", name, escaped(value))
		}
	}
	number := func(name string, n int) {
		if n > 0 {
			line(name, strconv.Itoa(n))
		}
	}
	filter, err := json.Marshal(job.Filter)
	if err != nil {
		return err
	}
	line("job", strconv.Itoa(job.ID))
	line("do", actionOf(job.Spec))
	line("queue", job.Queue)
	line("to", job.To)
	if string(filter) != "{}" {
		line("filter", string(filter))
	}
	number("at most", job.Max)
	if job.Rate > 0 {
		line("a second", strconv.FormatFloat(job.Rate, 'g', -1, 64))
	}
	line("by", job.By)
	line("why", job.Why)
	line("state", job.State())
	line("begun", when(job.Begun))
	if !job.Ended.IsZero() {
		line("ended", when(job.Ended))
	}
	line("done", doneOf(&job))
	number("looping", job.Looping)
	number("unsafe to repeat", job.Unsafe)
	number("lapsed", job.Lapsed)
	number("skipped", job.Skipped)
	line("last step by", job.Runner)
	line("error", job.Error)
	return a.print(b.String())
}

func (a *app) jobsRun() *cobra.Command {
	return &cobra.Command{
		Use: "run JOB", Short: "Run a job here unless a worker does, and show its progress", Args: one("JOB"),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := jobID(args[0])
			if err != nil {
				return err
			}
			return a.withJobs(c, func(ctx context.Context, s inspected, j *jobs.Jobs) error {
				job, err := j.Get(ctx, id)
				if err != nil {
					return err
				}
				if job.State() == "paused" {
					return fmt.Errorf("job %d is paused: weir jobs resume %d resumes it", id, id)
				}
				show, stop := a.startProgress(job)
				job, err = s.run(ctx, j, job, show)
				stop()
				return a.done(job.Spec, job.Progress, err)
			})
		},
	}
}

func (a *app) jobsRate() *cobra.Command {
	var p person
	c := &cobra.Command{
		Use: "rate JOB RATE", Short: "Change the rate of a job, in messages a second; 0 means no limit",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("%s needs a JOB and a RATE, and has %d arguments (-h for help)", named(c), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			id, err := jobID(args[0])
			if err != nil {
				return err
			}
			rate, err := strconv.ParseFloat(args[1], 64)
			if err != nil {
				return usagef("%q is not a rate: give a number of messages a second, such as 20 or 0.5", args[1])
			}
			by, why := p.read(c)
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				job, err := j.SetRate(ctx, id, rate, by, why)
				if err != nil {
					return err
				}
				return a.showJob(job)
			})
		},
	}
	p.flags(c)
	return c
}

func (a *app) jobsOrder(name, short string, order func(j *jobs.Jobs, ctx context.Context, id int, by, why string) (jobs.Job, error)) *cobra.Command {
	var p person
	c := &cobra.Command{
		Use: name + " JOB", Short: short, Args: one("JOB"),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := jobID(args[0])
			if err != nil {
				return err
			}
			by, why := p.read(c)
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				job, err := order(j, ctx, id, by, why)
				if err != nil {
					return err
				}
				if a.json {
					return a.object(job)
				}
				return a.print(fmt.Sprintf("Job %d is %s, %s done\n", id, job.State(), doneOf(&job)))
			})
		},
	}
	p.flags(c)
	return c
}

func (a *app) log() *cobra.Command {
	c := &cobra.Command{
		Use: "log", Short: "Show who has done what, and check that nothing is missing", Args: none,
		Long: `Show who has done what: each start, pause, resume, cancel and end of a job, each
change of its rate, each import, each pause and resume of a queue, each hold and
resume of a key, and each hold, resume and limit of a backend, whose name is in
QUEUE. DO is queue, key or backend for these.
weir only appends to this log. Each line has a hash that includes the hash of
the line before, so a line that was changed or removed is found: exit status 1.
HASH is its beginning; --json has all of it. To notice that the whole log was
written anew, keep a hash elsewhere. A terminal of less than 110 columns does
not show HASH, and the year and the second of AT: -o wide does.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				var rows [][]string
				var broken error
				for l, err := range j.Log(ctx) {
					broken = err
					if err != nil {
						break
					}
					if a.json {
						if err := a.object(struct {
							jobs.Line
							Hash string `json:"hash"`
						}{l, l.Hash}); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, a.logRow(l))
				}
				if len(rows) > 0 {
					if err := a.printLog(rows); err != nil {
						return err
					}
				} else if broken == nil && !a.json {
					a.note("The log is empty.")
				}
				return broken
			})
		},
	}
	output{a}.flag(c)
	return c
}

// printLog prints lines of the log, on a narrow terminal without hashes: who and why
// matter more.
func (a *app) printLog(rows [][]string) error {
	columns := []column{
		{name: "LINE", right: true, whole: true},
		{name: "AT"},
		{name: "EVENT"},
		{name: "JOB", right: true},
		{name: "DO"},
		{name: "QUEUE", least: 8},
		{name: "DONE", right: true},
		{name: "BY", least: 8},
		{name: "WHY", least: 12},
		{name: "HASH"},
	}
	if a.width() < narrow {
		columns = columns[:len(columns)-1]
		for i := range rows {
			rows[i] = rows[i][:len(columns)]
		}
	}
	return a.table(columns, rows)
}

// logRow returns the row of a line, on a narrow terminal without the year and the second.
func (a *app) logRow(l jobs.Line) []string {
	at := when(l.At)
	if a.width() < narrow {
		at = l.At.UTC().Format("01-02 15:04Z")
	}
	about := []string{strconv.Itoa(l.Job.ID), actionOf(l.Job.Spec), l.Job.Queue, strconv.Itoa(l.Job.Done)}
	if l.Backend != nil {
		limit := ""
		if l.Backend.Limit != nil {
			limit = strconv.Itoa(*l.Backend.Limit)
		}
		about = []string{"", "backend", l.Backend.Backend, limit}
	}
	if l.Queue != nil {
		about = []string{"", "queue", l.Queue.Queue, ""}
	}
	if l.Key != nil {
		about = []string{"", "key", l.Key.Queue + ": " + l.Key.Key, ""}
	}
	row := append([]string{strconv.Itoa(l.N), at, l.Event}, about...)
	return append(row, l.By, l.Why, l.Hash[:8])
}

func (a *app) workers() *cobra.Command {
	c := &cobra.Command{
		Use: "workers", Short: "Show the workers and their work", Args: none,
		Long: `Show the workers of the database. Each worker reports every 20 s. A worker whose
SEEN is more than a minute ago has died, or does not reach the database; others
remove it after two minutes.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withJobs(c, func(ctx context.Context, _ inspected, j *jobs.Jobs) error {
				list, err := j.Workers(ctx)
				if err != nil {
					return err
				}
				var rows [][]string
				for _, w := range list {
					if a.json {
						if err := a.object(w); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, workerRow(w))
				}
				if a.json {
					return nil
				}
				if len(rows) == 0 {
					a.note("No worker is here.")
					return nil
				}
				return a.table([]column{
					{name: "WORKER", whole: true},
					{name: "HOST", least: 5},
					{name: "PROCESS", right: true},
					{name: "SINCE"},
					{name: "SEEN"},
					{name: "QUEUES", least: 8},
					{name: "DONE", right: true},
					{name: "FAILED", right: true},
					{name: "IN FLIGHT", right: true},
				}, rows)
			})
		},
	}
	output{a}.flag(c)
	return c
}

func workerRow(w jobs.Worker) []string {
	done, failed := countsOf(w)
	inFlight, _ := operatorsOf(w)
	return []string{
		w.ID, w.Host, strconv.Itoa(w.PID), when(w.Since), when(w.Seen), strings.Join(w.Queues, ", "),
		strconv.Itoa(done), strconv.Itoa(failed), strconv.Itoa(inFlight),
	}
}

// actionOf returns the name of a job's action, as in the commands.
func actionOf(s jobs.Spec) string {
	if s.Family {
		return "cancel"
	}
	return string(s.Do)
}
