package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

// person holds the flags with the person who acts and the reason.
type person struct{ by, why string }

func (p *person) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.by, "by", "", "`WHO` wants it, for the log (default: your user and host)")
	c.Flags().StringVar(&p.why, "why", "", "the `REASON`, for the log (default: the name of the command)")
}

func (p *person) read(c *cobra.Command) (by, why string) {
	by, why = p.by, p.why
	if by == "" {
		by = "unknown user"
		if u, err := user.Current(); err == nil {
			by = u.Username
		}
		if host, err := os.Hostname(); err == nil {
			by += "@" + host
		}
	}
	if why == "" {
		why = c.CommandPath()
	}
	return strings.ToValidUTF8(by, "?"), strings.ToValidUTF8(why, "?")
}

// bulk holds flags of commands that affect many messages.
type bulk struct {
	filter
	person
	spec        jobs.Spec
	yes, detach bool
	all         bool // process all messages, without a filter
	toEmpty     bool
	lapsed      bool // also send back messages of workers that died
}

func (b *bulk) flags(a *app, c *cobra.Command) {
	b.filter.flags(c)
	b.person.flags(c)
	c.Flags().IntVar(&b.spec.Max, "max", 0, "at most `N` messages; 0 for all")
	c.Flags().Float64Var(&b.spec.Rate, "rate", 0, "at most `N` messages a second; 0 for no limit")
	c.Flags().BoolVar(&b.detach, "detach", false, "leave the job to the workers, and do not wait for it")
	c.Flags().BoolVar(&a.create, "create", false, "make the tables of jobs, if a program of an earlier version has made the database")
}

const aboutJobs = `
This is a job: it is kept in the database, and continues after a crash. If you
interrupt it, the workers of the database continue it within 20 s, or
weir jobs run does. weir jobs pause and weir jobs cancel stop it. weir log shows
who has done what. On Kafka it ends with this command: call it again.`

func (a *app) deadPurge() *cobra.Command {
	b := &bulk{spec: jobs.Spec{Do: store.Purge}}
	c := &cobra.Command{
		Use: "purge [ID]...", Short: "Remove dead letters for good",
		Long: `Remove dead letters for good: the chosen ones, or all with --all. Dead letters
that arrive after you were asked to confirm stay.
` + aboutJobs,
		RunE: func(c *cobra.Command, ids []string) error { return a.chosen(c, b, ids) },
	}
	b.flags(a, c)
	c.Flags().BoolVar(&b.all, "all", false, "remove every dead letter of the queue")
	c.Flags().BoolVar(&b.yes, "yes", false, "do not ask")
	return c
}

func (a *app) cancelKey() *cobra.Command {
	b := &bulk{spec: jobs.Spec{Do: store.Purge, Family: true}}
	c := &cobra.Command{
		Use: "cancel QUEUE --key KEY", Short: "Cancel all messages of a key, and the calls that run for them",
		Long: `Cancel all messages of a key, such as a customer: remove them from the queue,
its layers and its dead letters for good, and end the calls that run for them.
The contexts of these calls end within two seconds, and their failures and
results are not stored. Messages that are put later stay.
` + aboutJobs,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("which queue? Name one: weir cancel QUEUE --key KEY")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if b.spec.Filter.Key == "" {
				return usagef("which key? Add --key KEY (weir keys %s shows the keys)", args[0])
			}
			if engine := a.engine(); engine != "" && engine != "JetStream" {
				return usagef("%s does not cancel by key: SQLite, PostgreSQL and JetStream do", engine)
			}
			b.spec.Queue = args[0]
			b.spec.By, b.spec.Why = b.person.read(c)
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.cancel(ctx, db, b) })
		},
	}
	c.Flags().StringVar(&b.spec.Filter.Key, "key", "", "the `KEY`")
	b.person.flags(c)
	c.Flags().BoolVar(&b.yes, "yes", false, "do not ask")
	return c
}

// cancel asks, with the number of messages of each queue, and runs a job that cancels a
// key.
func (a *app) cancel(ctx context.Context, db *database, b *bulk) error {
	s := db.store.(inspected) // engines without jobs were refused before
	j, err := s.jobs()
	if err != nil {
		return err
	}
	counts, err := j.Matching(ctx, b.spec)
	if err != nil {
		return err
	}
	total := 0
	var parts []string
	for _, c := range counts {
		total += c.Messages
		parts = append(parts, fmt.Sprintf("%d of queue %q", c.Messages, c.Queue))
	}
	if total == 0 {
		err = mustExist(ctx, db.store, b.spec.Queue)
		if err != nil {
			return err
		}
		return a.done(b.spec, jobs.Progress{}, nil)
	}
	err = a.ask(ctx, b.yes, fmt.Sprintf("Remove %s of key %q for good, and end their calls (%s)?", messages(total), b.spec.Filter.Key, strings.Join(parts, ", ")))
	if err != nil {
		return err
	}
	show, stop := a.startProgress(jobs.Job{Spec: b.spec, Total: total})
	job, err := db.store.do(ctx, b.spec, false, show)
	stop()
	return a.done(b.spec, job.Progress, err)
}

func (a *app) hold() *cobra.Command {
	b := &bulk{spec: jobs.Spec{Do: store.Hold}}
	c := &cobra.Command{
		Use: "hold --queue QUEUE [ID]...", Short: "Keep messages from being taken, until they are released",
		Long: `Keep messages of a queue from being taken, until they are released: the chosen
ones, or all with --all. Messages that a worker has at that moment, and messages
that arrive later, are not held.
` + aboutJobs,
		RunE: func(c *cobra.Command, ids []string) error { return a.chosen(c, b, ids) },
	}
	return a.holding(b, c, "hold every message of the queue")
}

func (a *app) release() *cobra.Command {
	b := &bulk{spec: jobs.Spec{Do: store.Release}}
	c := &cobra.Command{
		Use: "release --queue QUEUE [ID]...", Short: "Let messages that are held be taken again",
		Long: `Let held messages of a queue be taken again when they are due: the chosen ones,
or all with --all.
` + aboutJobs,
		RunE: func(c *cobra.Command, ids []string) error { return a.chosen(c, b, ids) },
	}
	return a.holding(b, c, "release every held message of the queue")
}

func (a *app) due() *cobra.Command {
	b := &bulk{spec: jobs.Spec{Do: store.Due}}
	c := &cobra.Command{
		Use: "due --queue QUEUE [ID]...", Short: "Let messages that wait for their delay be taken now",
		Long: `Let messages that wait for their delay be taken now, such as the messages of a
layer: the chosen ones, or all with --all. They keep their visits, their layer
and the order of their keys. Held messages stay held.
` + aboutJobs,
		RunE: func(c *cobra.Command, ids []string) error { return a.chosen(c, b, ids) },
	}
	return a.holding(b, c, "every message of the queue")
}

func (a *app) holding(b *bulk, c *cobra.Command, all string) *cobra.Command {
	b.flags(a, c)
	c.Flags().String("queue", "", "the `QUEUE` (weir layers shows them)")
	c.Flags().BoolVar(&b.all, "all", false, all)
	c.Flags().BoolVar(&b.yes, "yes", false, "do not ask")
	return c
}

// chosen runs a job over the selected messages. All messages of a queue need --all.
func (a *app) chosen(c *cobra.Command, b *bulk, ids []string) error {
	if err := b.read(a, c, ids); err != nil {
		return err
	}
	switch {
	case b.spec.Queue == "":
		return usagef("which queue? Add --queue QUEUE")
	case isAll(b.spec.Filter) && !b.all:
		return usagef("which messages? Choose some, or add --all")
	case !isAll(b.spec.Filter) && b.all:
		return usagef("--all and a choice exclude each other")
	}
	return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.work(ctx, c, db, b) })
}

func (b *bulk) read(a *app, c *cobra.Command, ids []string) (err error) {
	b.spec.Queue = queueOf(c)
	b.spec.By, b.spec.Why = b.person.read(c)
	b.spec.Filter, err = b.filter.read(a, ids)
	if err != nil {
		return err
	}
	if b.spec.Max < 0 || !(b.spec.Rate >= 0) {
		return usagef("--max %d and --rate %v must not be negative", b.spec.Max, b.spec.Rate)
	}
	return nil
}

func (a *app) deadMerge() *cobra.Command {
	b := &bulk{spec: jobs.Spec{Do: store.Merge}}
	c := &cobra.Command{
		Use: "merge --to QUEUE [ID]...", Short: "Send dead letters back to be processed again",
		Long: `Send dead letters back to be processed again, into the queue that their program
reads. Each leaves the dead letters in the same step.

Two kinds stay, unless a flag sends them back, too. A call in doubt may have
taken effect, and its service would take another call for a new request. Of
lapsed messages it is not known how far their workers came before they died.
weir dead show says of each message whether it may be repeated.
` + aboutJobs,
		RunE: func(c *cobra.Command, ids []string) error {
			if err := b.read(a, c, ids); err != nil {
				return err
			}
			switch {
			case b.all && !isAll(b.spec.Filter):
				return usagef("--all and a choice exclude each other")
			case b.spec.To == "":
				return usagef("where to? Add --to QUEUE")
			case b.spec.To == b.spec.Queue:
				return usagef("--to %s: they are there", b.spec.To)
			case b.spec.MaxMerges < 1:
				return usagef("--max-merges %d must be at least 1", b.spec.MaxMerges)
			}
			b.spec.LeaveLapsed = !b.lapsed
			return a.with(c.Context(), func(ctx context.Context, db *database) error { return a.work(ctx, c, db, b) })
		},
	}
	b.flags(a, c)
	c.Flags().StringVar(&b.spec.To, "to", "", "the `QUEUE` that they return to")
	c.Flags().BoolVar(&b.all, "all", false, "every dead letter of the queue, as without a choice")
	c.Flags().IntVar(&b.spec.MaxMerges, "max-merges", jobs.DefaultMaxMerges, "leave messages that were merged `N` times already")
	c.Flags().BoolVar(&b.spec.UnsafeToRepeat, "unsafe-to-repeat", false, "also messages whose call may have taken effect: it is repeated")
	a.renamed(c, "outcome-unknown", "unsafe-to-repeat")
	c.Flags().BoolVar(&b.lapsed, "lapsed", false, "also messages whose workers died or hung while they had them")
	c.Flags().BoolVar(&b.yes, "yes", false, "do not ask, if the queue of --to has messages")
	c.Flags().BoolVar(&b.toEmpty, "to-empty", false, "the queue of --to is right, although it is empty or new")
	return c
}

// work asks, runs a job, shows its progress, and prints the result.
func (a *app) work(ctx context.Context, c *cobra.Command, db *database, b *bulk) error {
	if _, err := a.deadOf(ctx, c, db, false); err != nil {
		return err
	}
	n, err := db.store.matching(ctx, b.spec)
	if err != nil {
		return err
	}
	total := n
	if b.spec.Max > 0 {
		total = min(total, b.spec.Max)
	}
	if total == 0 {
		return a.done(b.spec, jobs.Progress{}, nil)
	}
	last, err := lastOf(ctx, db, b.spec)
	if err != nil {
		return err
	}
	if err := a.warnOfRepeats(ctx, db, b); err != nil {
		return err
	}
	if err := a.askBulk(ctx, db, b, total); err != nil {
		return err
	}
	if f := &b.spec.Filter; !last.IsZero() && (f.Before.IsZero() || last.Before(f.Before)) {
		f.Before = last
	}
	show, stop := a.startProgress(jobs.Job{Spec: b.spec, Total: total})
	job, err := db.store.do(ctx, b.spec, b.detach, show)
	stop()
	if b.detach && err == nil {
		if a.json {
			return a.object(job)
		}
		return a.print(fmt.Sprintf("Job %d is started: weir jobs shows it\n", job.ID))
	}
	if err == nil && job.Paused {
		err = fmt.Errorf("job %d was paused: weir jobs resume %d resumes it", job.ID, job.ID)
	}
	return a.done(b.spec, job.Progress, err)
}

// lastOf returns a time just after the last matching arrival, so that a purge keeps
// messages that arrive while the person thinks. It returns zero for a topic, which is
// purged up to its end at opening.
func lastOf(ctx context.Context, db *database, s jobs.Spec) (time.Time, error) {
	if _, ok := db.store.(inspected); !ok || s.Do != store.Purge {
		return time.Time{}, nil
	}
	n, err := db.store.Count(ctx, s.Queue, s.Filter)
	if err != nil || n.Last == 0 {
		return time.Time{}, err
	}
	last, err := db.store.List(ctx, s.Queue, s.Filter, store.Page{After: n.Last - 1, Until: n.Last, Max: 1})
	if err != nil || len(last) == 0 {
		return time.Time{}, err
	}
	return last[0].Arrived.Add(time.Microsecond), nil
}

// warnOfRepeats prints, before the question, how many messages a merge keeps or sends
// back although a call may have taken effect.
func (a *app) warnOfRepeats(ctx context.Context, db *database, b *bulk) error {
	if b.spec.Do != store.Merge || b.yes {
		return nil
	}
	careful := b.spec
	careful.UnsafeToRepeat, careful.LeaveLapsed = false, true
	counts, err := jobs.Forecast(ctx, db.store, careful, a.clock.Now())
	if err != nil {
		return err
	}
	warn := func(n int, goes bool, why, flag string) {
		switch {
		case n > 0 && goes:
			a.note("%s: %s. They are sent back, too (%s)", messages(n), why, flag)
		case n > 0:
			a.note("%s: %s. They stay (%s sends them back, too)", messages(n), why, flag)
		}
	}
	warn(counts.Unsafe, b.spec.UnsafeToRepeat, "in doubt, since a call may have taken effect", "--unsafe-to-repeat")
	warn(counts.Lapsed, b.lapsed, "lapsed, since their workers died or hung. A call may have taken effect", "--lapsed")
	return nil
}

// askBulk asks for confirmation. It asks even with --yes about a merge into a queue
// without messages and workers, because its name may be mistyped.
func (a *app) askBulk(ctx context.Context, db *database, b *bulk, total int) error {
	s := b.spec
	question := map[store.Action]string{
		store.Merge:   fmt.Sprintf("Send %s of queue %q back to %q?", messages(total), s.Queue, s.To),
		store.Purge:   fmt.Sprintf("Remove %s from queue %q for good?", messages(total), s.Queue),
		store.Hold:    fmt.Sprintf("Hold %s of queue %q?", messages(total), s.Queue),
		store.Due:     fmt.Sprintf("Let %s of queue %q be taken now?", messages(total), s.Queue),
		store.Release: fmt.Sprintf("Release the held messages among %s of queue %q?", messages(total), s.Queue),
	}[s.Do]
	if s.Do != store.Merge || b.toEmpty {
		return a.ask(ctx, b.yes, question)
	}
	empty, err := db.store.empty(ctx, s.To)
	right := !empty
	if empty && err == nil {
		right, err = isRead(ctx, db.store, s.Queue, s.To)
	}
	switch {
	case err != nil:
		return err
	case right:
		return a.ask(ctx, b.yes, question)
	case b.yes || !isTerminal(a.in):
		return usagef("queue %q is empty or new, and no worker reads it now: if the program reads this queue, add --to-empty", s.To)
	}
	a.note("Queue %q is empty, and no worker reads it: is the name right?", s.To)
	return a.ask(ctx, false, question)
}

type mergedJSON struct {
	Merged         int `json:"merged"`
	Looping        int `json:"looping"`
	UnsafeToRepeat int `json:"unsafeToRepeat"`
	Lapsed         int `json:"lapsed"`
	Busy           int `json:"busy"`
}

func (a *app) done(s jobs.Spec, p jobs.Progress, err error) error {
	past := map[store.Action]string{store.Purge: "removed", store.Hold: "held", store.Release: "released", store.Due: "due"}[s.Do]
	switch {
	case a.json && s.Do == store.Merge:
		return errors.Join(a.object(mergedJSON{p.Done, p.Looping, p.Unsafe, p.Lapsed, p.Skipped}), err)
	case a.json && s.Family:
		return errors.Join(a.object(map[string]int{"purged": p.Done, "skipped": p.Skipped}), err)
	case a.json && s.Do == store.Purge:
		return errors.Join(a.object(map[string]int{"purged": p.Done}), err)
	case a.json:
		return errors.Join(a.object(map[string]int{past: p.Done}), err)
	case s.Family && p.Skipped > 0:
		text := fmt.Sprintf("%s removed\n%s skipped: settled before, or the engine refuses the change\n", messages(p.Done), messages(p.Skipped))
		return errors.Join(a.print(text), err)
	case s.Do != store.Merge:
		return errors.Join(a.print(messages(p.Done)+" "+past+"\n"), err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s sent back to %q\n", messages(p.Done), s.To)
	stayed := func(n int, why string) {
		if n > 0 {
			fmt.Fprintf(&b, "%s stayed: %s\n", messages(n), why)
		}
	}
	stayed(p.Unsafe, "unsafe to repeat (--unsafe-to-repeat sends them back, too)")
	stayed(p.Lapsed, "their workers died or hung: look first how far they got (--lapsed sends them back, too)")
	stayed(p.Looping, fmt.Sprintf("merged %d times already (--max-merges)", s.MaxMerges))
	stayed(p.Skipped, "a worker has them, they are gone, the queue has them already, or they are pointers without bytes")
	return errors.Join(a.print(b.String()), err)
}
