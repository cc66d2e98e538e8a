package deliverytest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

var jobRules = []storeRule{
	{name: "keeper: records", check: records},
	{name: "keeper: all or nothing", check: allOrNothing},
	{name: "keeper: edits", check: edits},
	{name: "keeper: edits of messages with one id", check: editsOfOneID},
	{name: "jobs: merge", check: jobMerge},
	{name: "jobs: filters", check: jobFilters},
	{name: "jobs: what is there at the start", check: jobSet},
	{name: "jobs: hold and release", check: jobHold},
	{name: "jobs: a delay without end is no hold", check: jobHoldEndless},
	{name: "jobs: due", check: jobDue},
	{name: "jobs: rate and maximum", check: jobRate},
	{name: "jobs: pause, resume, cancel", check: jobOrders},
	{name: "jobs: a key is cancelled", check: jobCancelKey},
	{name: "jobs: a key is held", check: jobHoldKey},
	{name: "jobs: the queue of a first source is paused", check: jobPauseFirst},
	{name: "jobs: two processes", check: jobTwo},
	{name: "jobs: the log", check: jobLog},
	{name: "jobs: workers", check: jobWorkers},
	{name: "jobs: backends", check: jobBackends},
}

func (b *storeBench) keeper() store.Keeper {
	k, ok := b.Store.(store.Keeper)
	if !ok {
		panic(notApplicable{})
	}
	return k
}

func (b *storeBench) update(f func(ctx context.Context, tx store.Tx) error) error {
	return b.keeper().Update(b.ctx, f)
}

func records(b *storeBench) {
	k := b.keeper()
	write := func(r store.Record) error {
		return b.update(func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, r) })
	}
	names := func(kind, after string, limit int) (all []string) {
		rs, err := k.Records(b.ctx, kind, after, limit)
		b.ok(err, "Records")
		for _, r := range rs {
			b.must(r.Kind == kind, "Records of %q returned one of %q", kind, r.Kind)
			all = append(all, fmt.Sprint(r.Name, "=", r.Value, "@", r.Version))
		}
		return all
	}
	for _, name := range []string{"b", "a", "B", "ä", "a b"} {
		b.ok(write(store.Record{Kind: "k", Name: name, Value: "1 of " + name}), "Write")
	}
	b.ok(write(store.Record{Kind: "other", Name: "a", Value: "x"}), "Write")
	got := names("k", "", 10)
	b.must(slices.Equal(got, []string{"B=1 of B@1", "a=1 of a@1", "a b=1 of a b@1", "b=1 of b@1", "ä=1 of ä@1"}), "the records are %q", got)
	got = names("k", "a", 2)
	b.must(slices.Equal(got, []string{"a b=1 of a b@1", "b=1 of b@1"}), "the records behind a are %q", got)
	b.ok(write(store.Record{Kind: "k", Name: "b", Version: 1, Value: "2"}), "Write")
	for _, version := range []int64{0, 1, 3} {
		err := write(store.Record{Kind: "k", Name: "b", Version: version, Value: "3"})
		b.must(errors.Is(err, store.ErrChanged), "Write of version %d over version 2 returned %v", version, err)
	}
	b.must(errors.Is(write(store.Record{Kind: "k", Name: "b", Version: 1}), store.ErrChanged), "a record of another version was removed")
	b.ok(write(store.Record{Kind: "k", Name: "b", Version: 2}), "Write without a value")
	got = names("k", "a b", 10)
	b.must(slices.Equal(got, []string{"ä=1 of ä@1"}), "the records are %q", got)
	for _, bad := range []store.Record{{Name: "a", Value: "1"}, {Kind: "k", Value: "1"}, {Kind: "k", Name: "\xff", Value: "1"}, {Kind: "k", Name: "n", Value: "\x00"}} {
		b.must(write(bad) != nil, "the record %+v is no error", bad)
	}
}

func allOrNothing(b *storeBench) {
	k := b.keeper()
	b.put("q", newMessage("a"), newMessage("b"), newMessage("c"))
	es := b.list("q", store.Filter{}, everything)
	broken := errors.New("no")
	err := b.update(func(ctx context.Context, tx store.Tx) error {
		moved := es[0]
		moved.Meta.Visit = 7
		b.ok(tx.Write(ctx, store.Record{Kind: "k", Name: "n", Value: "1"}), "Write")
		_, err := tx.Edit(ctx,
			store.Edit{Do: store.Merge, Queue: "q", Entry: moved, To: "other"},
			store.Edit{Do: store.Purge, Queue: "q", Entry: es[1]},
			store.Edit{Do: store.Hold, Queue: "q", Entry: es[2]})
		b.ok(err, "Edit")
		return broken
	})
	b.must(errors.Is(err, broken), "Update returned %v", err)
	rs, err := k.Records(b.ctx, "k", "", 10)
	b.ok(err, "Records")
	b.must(len(rs) == 0, "a record is there after an error: %v", rs)
	b.must(slices.Equal(ids(b.take("q", 20)), []string{"a", "b", "c"}), "messages were changed by an Update that returned an error")
	b.takeNone("other", "it was moved by an Update that returned an error")
}

func edits(b *storeBench) {
	b.put("q", full("moved"), full("there"), full("leased"), full("removed"), full("taken"), full("gone"))
	b.put("other", full("there"))
	for _, id := range []string{"moved", "there", "gone", "removed"} { // later than the others
		b.must(len(b.list("q", store.Filter{IDs: []string{id}}, everything)) == 1, "%s is missing", id)
	}
	listed := b.list("q", store.Filter{}, everything)
	claimed, err := b.inspector().Claim(b.ctx, "q", store.Filter{IDs: []string{"leased", "taken", "removed", "gone"}}, everything, b.units(20))
	b.ok(err, "Claim")
	for _, l := range claimed {
		switch l.Meta.ID {
		case "taken":
			b.ok(b.Release(b.ctx, 0, l.Lease), "Release")
		case "gone":
			b.ok(b.Done(b.ctx, l.Lease), "Done")
		}
	}
	var want, got []bool
	err = b.update(func(ctx context.Context, tx store.Tx) (err error) {
		var all []store.Edit
		want = nil
		for _, e := range listed {
			edit := store.Edit{Do: store.Merge, Queue: "q", Entry: e, To: "other"}
			edit.Entry.Delay = b.units(3)
			if e.Meta.ID == "removed" {
				edit = store.Edit{Do: store.Purge, Queue: "q", Entry: e}
			}
			all, want = append(all, edit), append(want, e.Meta.ID == "moved" || e.Meta.ID == "removed")
		}
		got, err = tx.Edit(ctx, all...)
		return err
	})
	b.ok(err, "Edit")
	b.must(slices.Equal(got, want), "edits of %v were done: %v", entryIDs(listed), got)
	b.must(slices.Equal(entryIDs(b.list("q", store.Filter{}, everything)), []string{"there", "leased", "taken"}), "another message has left its queue")
	moved := b.list("other", store.Filter{IDs: []string{"moved"}}, everything)
	b.must(len(moved) == 1 && same(moved[0].Message, full("moved")) && moved[0].Fence == 0, "moved: %+v", moved)
	b.must(!moved[0].Meta.Due.Before(moved[0].Arrived.Add(b.units(3))), "what was moved with a delay is due at %v", moved[0].Meta.Due)
	b.must(slices.Equal(ids(b.take("other", 1)), []string{"there"}), "what was moved with a delay is taken before")
}

// Messages with one id that were put at different places are different messages (law W5).
func editsOfOneID(b *storeBench) {
	first, second := newMessage("a"), newMessage("a")
	first.Meta.Put, second.Meta.Put = "orders/0/1", "orders/\xff/2"
	b.put("q", first, second)
	b.put("q2", first)
	var all []store.Edit
	for _, queue := range []string{"q", "q2"} {
		for _, e := range b.list(queue, store.Filter{}, everything) {
			all = append(all, store.Edit{Do: store.Merge, Queue: queue, Entry: e, To: "other"})
		}
	}
	var got []bool
	err := b.update(func(ctx context.Context, tx store.Tx) (err error) {
		got, err = tx.Edit(ctx, all...)
		return err
	})
	b.ok(err, "Edit")
	b.must(slices.Equal(got, []bool{true, true, false}), "edits of two messages with one id, and of a copy, were done: %v", got)
	b.must(len(b.list("other", store.Filter{}, everything)) == 2, "another number of messages arrived")
	b.must(len(b.list("q", store.Filter{}, everything)) == 0, "a message that arrived is still in its former queue")
	b.must(len(b.list("q2", store.Filter{}, everything)) == 1, "a message that did not arrive has left its queue")
}

type process struct {
	*jobs.Jobs
	b    *storeBench
	mock *clock.Mock // of its waits
}

func (b *storeBench) process() *process {
	b.keeper()
	mock := clock.NewMock()
	j, err := jobs.New(b.open(), jobs.Config{Clock: mock, Logger: slog.New(slog.DiscardHandler)})
	b.ok(err, "jobs.New")
	return &process{j, b, mock}
}

func (p *process) start(s jobs.Spec) jobs.Job {
	s.By, s.Why = "ann", "test"
	job, err := p.Start(p.b.ctx, s)
	p.b.ok(err, "Start")
	return job
}

// finish runs a job until it is over or paused. watch is called all the time.
func (p *process) finish(id int, watch func()) jobs.Job {
	type result struct {
		job jobs.Job
		err error
	}
	ended := make(chan result, 1)
	go func() {
		job, err := p.Run(p.b.ctx, id, nil)
		ended <- result{job, err}
	}()
	for {
		select {
		case r := <-ended:
			p.b.ok(r.err, "Run")
			return r.job
		case <-time.After(time.Millisecond):
		}
		if watch != nil {
			watch()
		}
		p.b.Wait(p.b.Unit / 10)
		p.mock.Add(p.b.Unit / 10)
	}
}

func (p *process) do(s jobs.Spec) jobs.Job { return p.finish(p.start(s).ID, nil) }

var toOrders = jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders"}

func jobMerge(b *storeBench) {
	p := b.process()
	looping := full("looping")
	doubt := full("doubt")
	remembered := full("remembered")
	looping.Meta.Merges, looping.Meta.UnsafeToRepeat = 5, false
	doubt.Meta.Remembered = time.Time{}
	remembered.Meta.Remembered = time.Now().AddDate(100, 0, 0).UTC().Truncate(time.Second)
	lapsed := newMessage("lapsed")
	lapsed.Cause = store.Lapsed
	b.put("dead", looping, doubt, lapsed, remembered, newMessage("leased"))
	claimed, err := b.inspector().Claim(b.ctx, "dead", store.Filter{IDs: []string{"leased"}}, everything, b.units(1000))
	b.ok(err, "Claim")
	b.must(len(claimed) == 1, "Claim returned %v", ids(claimed))
	const n = 1100
	ms := make([]store.Message, n)
	for i := range ms {
		ms[i] = full(strconv.Itoa(i))
		ms[i].Meta.UnsafeToRepeat = false
		ms[i].Meta.Request = ""
		ms[i].Meta.Remembered = time.Time{}
	}
	b.put("dead", ms...)
	careful := toOrders
	careful.LeaveLapsed = true
	job := p.do(careful)
	b.must(job.Progress == jobs.Progress{Done: n + 1, Looping: 1, Unsafe: 1, Lapsed: 1, Skipped: 1}, "the job has done %+v", job.Progress)
	b.must(job.Total == n+5 && job.State() == "done" && job.Error == "", "the job is %+v", job)
	got := b.list("orders", store.Filter{}, everything)
	b.must(len(got) == n+1, "%d messages arrived", len(got))
	want := full("7")
	want.Meta.UnsafeToRepeat = false
	want.Meta.Visit = 0
	want.Meta.Attempts = 0
	want.Meta.Merges = 2
	want.Cause = ""
	want.Meta.Request, want.Meta.Remembered = "", time.Time{}
	want.Meta.MergeJob = job.ID
	b.must(same(got[8].Message, want), "a merged message is %+v", got[8].Message)
	b.must(got[0].Meta.UnsafeToRepeat && got[0].Meta.Request != "", "a call that is remembered returned without its request: %+v", got[0].Meta)
	left := entryIDs(b.list("dead", store.Filter{}, everything))
	b.must(slices.Equal(left, []string{"looping", "doubt", "lapsed", "leased"}), "dead letters that stayed: %v", left)
	all := toOrders
	all.UnsafeToRepeat, all.MaxMerges = true, 9
	job = p.do(all)
	b.must(job.Done == 3 && job.Skipped == 1, "the second job has done %+v", job.Progress)
}

func jobFilters(b *storeBench) {
	p := b.process()
	for i, f := range []store.Filter{
		{IDs: []string{"3", "5", "none"}},
		{Key: "a"},
		{Source: "source%2"},
		{Provider: "provider3"},
		{Cause: store.UnsafeToRepeat},
		{Reason: "REASON_1"},
		{Error: "100%_of 1"},
		{Cause: store.Permanent, Reason: "ALWAYS", Provider: "provider1"},
	} {
		queue := "q" + strconv.Itoa(i)
		dozen(b, queue)
		b.put(queue, store.Message{Meta: full("x").Meta, Payload: []byte("x")})
		all := b.list(queue, store.Filter{}, everything)
		if i == 0 {
			f.Since, f.Before = all[2].Arrived, all[11].Arrived.Add(time.Hour)
		}
		var want []string
		for _, e := range all {
			if !f.Match(&e) {
				want = append(want, e.Meta.ID)
			}
		}
		job := p.do(jobs.Spec{Do: store.Purge, Queue: queue, Filter: f})
		left := entryIDs(b.list(queue, store.Filter{}, everything))
		b.must(slices.Equal(left, want) && job.Done == len(all)-len(want), "the filter %+v left %v in place of %v, done %d", f, left, want, job.Done)
	}
}

// jobSet checks that a job does not affect messages that arrive or return after its
// start.
func jobSet(b *storeBench) {
	p := b.process()
	b.put("q", newMessage("a"), newMessage("b"))
	job := p.start(jobs.Spec{Do: store.Purge, Queue: "q"})
	b.put("q", newMessage("c"))
	claimed := b.take("q", 1000) // purged although leased
	job = p.finish(job.ID, nil)
	b.must(job.Done == 2, "the job has done %+v", job.Progress)
	b.must(slices.Equal(entryIDs(b.list("q", store.Filter{}, everything)), []string{"c"}), "a job has removed what came after its start")
	b.lost(b.Done(b.ctx, claimed[0].Lease), "Done of what a job has removed", claimed[0].Lease)

	// A message that returns while its job runs has a new position.
	b.put("dead", newMessage("1"), newMessage("2"))
	job = p.start(toOrders)
	claimed, err := b.inspector().Claim(b.ctx, "dead", store.Filter{IDs: []string{"2"}}, everything, b.units(5))
	b.ok(err, "Claim")
	m := claimed[0].Clone()
	m.Meta.Visit = 3
	b.ok(b.inspector().Move(b.ctx, store.Move{Lease: claimed[0].Lease, Queue: "dead", Message: m}), "Move")
	job = p.finish(job.ID, nil)
	b.must(job.Done == 1 && job.Skipped == 0, "the job has done %+v", job.Progress)
	b.must(len(b.list("dead", store.Filter{}, everything)) == 1, "what came back was merged")
}

func jobHold(b *storeBench) {
	p := b.process()
	dozen(b, "q") // odd ones are delayed
	leased := b.takeFirst("q")
	evens := store.Filter{Reason: "REASON_0"}
	job := p.do(jobs.Spec{Do: store.Hold, Queue: "q", Filter: evens})
	b.must(job.Done == 5 && job.Skipped == 1, "the hold has done %+v", job.Progress)
	b.takeNone("q", "it is held")
	c, err := b.inspector().Count(b.ctx, "q", store.Filter{})
	b.ok(err, "Count")
	b.must(c.Messages == 12 && c.Held == 5, "of 12 messages 5 are held, the count is %+v", c)
	c, err = b.inspector().Count(b.ctx, "q", store.Filter{IDs: []string{"2", "4"}})
	b.ok(err, "Count")
	b.must(c.Held == 2 && c.Next.IsZero(), "all are held, and the count says when the next can be taken: %+v", c)
	for _, e := range b.list("q", evens, everything) {
		b.must(e.Held == (e.Meta.ID != leased.Meta.ID), "message %s: Held is %v", e.Meta.ID, e.Held)
	}
	claimed, err := b.inspector().Claim(b.ctx, "q", evens, everything, b.units(1))
	b.ok(err, "Claim")
	b.must(len(claimed) == 0, "Claim returned %v, which are held", ids(claimed))
	b.ok(b.Release(b.ctx, 0, leased.Lease), "Release of what was leased while others were held")
	b.wait(2)
	b.must(slices.Equal(ids(b.take("q", 3)), []string{leased.Meta.ID}), "what is not held is not taken")

	// The lease of the first has ended, so it is held, and its former worker cannot
	// release it.
	b.wait(4)
	late := b.list("q", store.Filter{IDs: []string{leased.Meta.ID}}, everything)[0]
	job = p.do(jobs.Spec{Do: store.Hold, Queue: "q", Filter: store.Filter{IDs: []string{leased.Meta.ID}}})
	b.must(job.Done == 1, "what was leased until a moment ago is not held: %+v, %+v", job.Progress, late)
	lease := store.Lease{Queue: "q", Entry: leased.Lease.Entry, Fence: late.Fence}
	b.lost(b.Release(b.ctx, 0, lease), "Release of what is held", lease)
	b.takeNone("q", "it is held")

	job = p.do(jobs.Spec{Do: store.Release, Queue: "q"})
	b.must(job.Done == 6 && job.Skipped == 6, "the release has done %+v", job.Progress)
	got := ids(b.take("q", 100))
	slices.Sort(got)
	b.must(slices.Equal(got, []string{"0", "10", "2", "4", "6", "8"}), "after the release Take returned %v", got)
}

// jobCancelKey checks that a job removes a key's messages everywhere, even if they are
// leased, held, or move meanwhile.
func jobCancelKey(b *storeBench) {
	const key = "customer <7>\x00\u202e"
	p := b.process()
	queues := []string{"q", "q-blocked", "q-retry-1", "q-retry-2", "q-retry-10", "q-dead", "other", "q2", "q2-dead"}
	for _, queue := range queues {
		b.put(queue, newMessage("stays"))
		b.put(queue, ofKey("stays", 2)...)
		b.put(queue, ofKey(key, 2)...)
	}
	counts, err := p.Matching(b.ctx, jobs.Spec{Do: store.Purge, Queue: "q", Family: true, Filter: store.Filter{Key: key}})
	b.ok(err, "Matching")
	matching := 0
	for _, c := range counts {
		b.must(c.Messages == 2 && slices.Contains(queues[:6], c.Queue), "Matching returned %+v", counts)
		matching += c.Messages
	}
	b.must(matching == 12, "Matching returned %+v", counts)
	b.must(len(b.take("q-retry-2", 1000)) == 5, "Take has not returned what is due")

	job, err := p.CancelKey(b.ctx, "q", key, "ann", "the customer has left")
	b.ok(err, "CancelKey")
	b.must(job.Total == 12 && job.Done == 0, "the job affects %d messages, and has removed %d", job.Total, job.Done)
	b.put("q", ofKey(key, 3)[2]) // later than the start of the job
	// Handed over by a layer while the job runs.
	moved, err := b.inspector().Claim(b.ctx, "q-retry-1", store.Filter{Key: key}, store.Page{Max: 1}, b.units(1000))
	b.ok(err, "Claim")
	next := moved[0].Message
	next.Meta.Visit++
	next.Meta.Put = storearg.OriginOfPut("q-retry-1", &next.Meta, moved[0].Position, moved[0].Lease.Entry) // as a source sets it
	b.ok(b.inspector().Move(b.ctx, store.Move{Lease: moved[0].Lease, Queue: "q-retry-2", Message: next}), "Move")
	job = p.finish(job.ID, nil)
	b.must(job.State() == "done" && job.Done == 12 && job.Skipped == 0, "the job is %s and has done %+v", job.State(), job.Progress)
	for i, queue := range queues {
		left := len(b.list(queue, store.Filter{Key: key}, everything))
		want := 2
		switch {
		case queue == "q":
			want = 1
		case i < 6:
			want = 0
		}
		b.must(left == want, "queue %q has %d messages of the key in place of %d", queue, left, want)
		b.must(len(b.list(queue, store.Filter{}, everything)) == left+3, "queue %q lacks messages of other keys", queue)
	}
	var events []string
	for l, err := range p.Log(b.ctx) {
		b.ok(err, "Log")
		events = append(events, fmt.Sprint(l.Event, " ", l.Job.Done))
	}
	slices.Sort(events)
	b.must(slices.Equal(events, []string{"end 12", "start 0"}), "the log has the events %q", events)

	for _, bad := range []jobs.Spec{
		{Do: store.Merge, Queue: "q-dead", To: "q", Family: true}, {Do: store.Purge, Queue: "q-dead", Family: true}, {Do: store.Purge, Queue: "q-retry-1", Family: true},
	} {
		bad.By, bad.Why = "ann", "test"
		bad.Filter.Key = key
		_, err := p.Start(b.ctx, bad)
		b.must(err != nil, "Start of %+v is no error", bad)
	}
	_, err = p.CancelKey(b.ctx, "q", "", "ann", "test")
	b.must(err != nil, "CancelKey without a key is no error")
}

func jobHoldEndless(b *storeBench) {
	p := b.process()
	endless := newMessage("endless")
	endless.Delay = math.MaxInt64
	b.put("q", endless)
	isHeld := func(want bool, when string) {
		list := b.list("q", store.Filter{}, everything)
		b.must(len(list) == 1 && list[0].Held == want, "%s there are %+v", when, list)
		c, err := b.inspector().Count(b.ctx, "q", store.Filter{})
		b.ok(err, "Count")
		b.must(c.Held == 0 || want, "%s the count is %+v", when, c)
	}
	do := func(a store.Action) {
		job := p.do(jobs.Spec{Do: a, Queue: "q"})
		b.must(job.Done == 1, "%s: the job has done %+v", a, job.Progress)
	}
	isHeld(false, "before the hold")
	b.takeNone("q", "it has a delay")
	do(store.Hold)
	isHeld(true, "after the hold")
	do(store.Release)
	isHeld(false, "after the release")
	b.takeNone("q", "it has a delay")
	do(store.Due)
	got := b.take("q", 1)
	b.must(len(got) == 1, "what was made due is not taken")
	b.ok(b.Release(b.ctx, math.MaxInt64, got[0].Lease), "Release")
	isHeld(false, "when it was released")
}

// jobDue checks that a delayed message is made due in its place, with all its data.
func jobDue(b *storeBench) {
	p := b.process()
	waits := full("waits")
	held := full("held")
	leased := newMessage("leased")
	now := newMessage("now")
	waits.Delay, held.Delay = b.units(1000), b.units(1000)
	b.put("q-retry-1", waits, held, leased, now)
	claimed, err := b.inspector().Claim(b.ctx, "q-retry-1", store.Filter{IDs: []string{"leased"}}, everything, b.units(500))
	b.ok(err, "Claim")
	b.must(len(claimed) == 1, "Claim returned %v", ids(claimed))
	p.do(jobs.Spec{Do: store.Hold, Queue: "q-retry-1", Filter: store.Filter{IDs: []string{"held"}}})
	entry := func(id string) store.Entry {
		list := b.list("q-retry-1", store.Filter{IDs: []string{id}}, everything)
		b.must(len(list) == 1, "there are %v", entryIDs(list))
		return list[0]
	}
	before, stays := entry("waits"), entry("held")
	job := p.do(jobs.Spec{Do: store.Due, Queue: "q-retry-1"})
	b.must(job.Progress == jobs.Progress{Done: 1, Skipped: 3}, "the job has done %+v", job.Progress)
	after := entry("waits")
	b.must(after.Position == before.Position && same(after.Message, before.Message), "%+v was made due: %+v", before, after)
	b.must(after.Meta.Due.Before(before.Meta.Due) && entry("held").Meta.Due.Equal(stays.Meta.Due), "it is due at %v", after.Meta.Due)
	c, err := b.inspector().Count(b.ctx, "q-retry-1", store.Filter{IDs: []string{"waits"}})
	b.ok(err, "Count")
	b.must(!c.Next.After(b.now()), "what is due can be taken at %v", c.Next)
	got := ids(b.take("q-retry-1", 100))
	slices.Sort(got)
	b.must(slices.Equal(got, []string{"now", "waits"}), "Take returned %v", got)
	for _, s := range []jobs.Spec{{Do: store.Merge, Queue: "q-retry-1", To: "q"}, {Do: store.Merge, Queue: "q-blocked", To: "q"}, {Do: store.Due, Queue: "q", To: "x"}} {
		s.By, s.Why = "ann", "test"
		_, err := p.Start(b.ctx, s)
		b.must(err != nil, "Start of %+v is no error", s)
	}
}

func (b *storeBench) takeFirst(queue string) store.Leased {
	ms, err := b.Take(b.ctx, queue, 1, b.units(500))
	b.ok(err, "Take")
	b.must(len(ms) == 1, "Take returned %v", ids(ms))
	return ms[0]
}

func (b *storeBench) now() (now time.Time) {
	b.ok(b.update(func(_ context.Context, tx store.Tx) error {
		now = tx.Now()
		return nil
	}), "Update")
	return now
}

func jobRate(b *storeBench) {
	p := b.process()
	for i := range 60 {
		b.put("dead", newMessage(strconv.Itoa(i)))
	}
	s := toOrders
	s.Rate, s.Max = 10/b.Unit.Seconds(), 35
	batch := max(1, int(min(s.Rate, 500)))
	begun := b.now()
	job := p.finish(p.start(s).ID, func() {
		there := len(b.list("orders", store.Filter{}, everything))
		since := b.now().Sub(begun) // read later, so not too short
		may := int(s.Rate*since.Seconds()) + batch
		b.must(there <= may, "%d messages after %v, with a rate of %v", there, since, s.Rate)
	})
	b.must(job.Done == 35, "with a maximum of 35 the job has done %+v", job.Progress)
	took := job.Ended.Sub(begun)
	b.must(took >= time.Duration(float64(35-batch)/s.Rate*float64(time.Second)), "35 messages took %v with a rate of %v", took, s.Rate)
	b.must(len(b.list("dead", store.Filter{}, everything)) == 25, "not 25 messages stayed")
}

func jobOrders(b *storeBench) {
	p, other := b.process(), b.process()
	s := toOrders
	s.Rate = 10 / b.Unit.Seconds()
	n := 5 * max(1, int(min(s.Rate, 500))) // about a second
	for i := range n {
		b.put("dead", newMessage(strconv.Itoa(i)))
	}
	job := p.start(s)
	paused := false
	job = p.finish(job.ID, func() {
		if now, err := other.Get(b.ctx, job.ID); err == nil && now.Done > 0 && !paused {
			_, err := other.Pause(b.ctx, job.ID, "bob", "too fast")
			b.ok(err, "Pause")
			paused = true
		}
	})
	b.must(job.State() == "paused" && job.Done > 0 && job.Done < n, "after a pause the job is %s, and has done %+v", job.State(), job.Progress)
	done := job.Done
	job = p.finish(job.ID, nil)
	b.must(job.Done == done, "a job that is paused has gone on")
	_, err := p.Resume(b.ctx, job.ID, "bob", "")
	b.must(err != nil, "to resume without a reason is no error")
	_, err = p.Resume(b.ctx, job.ID, "bob", "slow enough")
	b.ok(err, "Resume")
	job = other.finish(job.ID, nil) // another process continues
	b.must(job.State() == "done" && job.Done == n, "after Resume the job is %s, and has done %+v", job.State(), job.Progress)
	b.must(len(b.list("orders", store.Filter{}, everything)) == n, "not all arrived")
	_, err = p.Cancel(b.ctx, job.ID, "bob", "late")
	b.must(err != nil, "to cancel what is over is no error")

	job = p.start(jobs.Spec{Do: store.Purge, Queue: "orders"})
	_, err = other.Cancel(b.ctx, job.ID, "bob", "wrong queue")
	b.ok(err, "Cancel")
	job = p.finish(job.ID, nil)
	b.must(job.State() == "cancelled" && job.Done == 0, "after Cancel the job is %s, and has done %+v", job.State(), job.Progress)
	_, err = p.Get(b.ctx, 99)
	b.must(errors.Is(err, fs.ErrNotExist), "Get of no job returned %v", err)
	list, err := p.List(b.ctx)
	b.ok(err, "List")
	b.must(len(list) == 2 && list[0].ID == job.ID, "List returned %+v", list)
	var events []string
	for l, err := range p.Log(b.ctx) {
		b.ok(err, "Log")
		events = append(events, l.Event+" "+l.By+" "+l.Why)
	}
	want := []string{"start ann test", "pause bob too fast", "resume bob slow enough", "end ann test", "start ann test", "cancel bob wrong queue"}
	b.must(slices.Equal(events, want), "the log has %q", events)
	for _, bad := range []jobs.Spec{{}, {Do: store.Merge, Queue: "q"}, {Do: "burn", Queue: "q"}, {Do: store.Purge}, {Do: store.Hold, Queue: "q", Rate: -1}, {Do: store.Merge, Queue: "q", To: "q"}} {
		bad.By, bad.Why = "ann", "test"
		_, err := p.Start(b.ctx, bad)
		b.must(err != nil, "Start of %+v is no error", bad)
	}
}

// jobHoldKey checks that a worker takes no messages of a held key, from the queue or its
// layers, until the resume.
func jobHoldKey(b *storeBench) {
	const key = "customer <7>\x00\u202e"
	p := b.process()
	queues := []string{"in", "in-retry-1"}
	for _, queue := range queues {
		for _, k := range []string{key, "other"} {
			m := newMessage(queue + k)
			m.Meta.Key, m.Payload = k, []byte(strconv.Quote(k[:5]))
			b.put(queue, m)
		}
	}
	_, err := p.HoldKey(b.ctx, "in", key, "ann", "their server is moved")
	_, canSkip := b.Store.(store.ByKey)
	if !canSkip {
		b.must(errors.Is(err, errors.ErrUnsupported), "HoldKey on an engine that cannot skip keys returned %v", err)
		return
	}
	b.ok(err, "HoldKey")
	_, err = p.HoldKey(b.ctx, "in", key, "bob", "again")
	b.must(errors.Is(err, fs.ErrExist), "a second HoldKey returned %v", err)
	held, err := p.HeldKeys(b.ctx)
	b.ok(err, "HeldKeys")
	b.must(len(held) == 1 && held[0].Key == key && held[0].Queue == "in" && held[0].By == "ann", "the held keys are %+v", held)

	in := b.quietQueue("in", delivery.WithFairByKey(2), delivery.RetryAfter(b.units(1)))
	called := make(chan string, 100)
	defer b.runWorker(in, in, called)()
	next := func(want string) {
		select {
		case got := <-called:
			b.must(got == want[:5], "a message of key %q was called, want one of key %q", got, want)
		case <-time.After(putPatience):
			b.fail("no message of key %q was called within %v", want, putPatience)
		}
	}
	next("other")
	next("other")
	for _, queue := range queues {
		list := b.list(queue, store.Filter{Key: key}, everything)
		b.must(len(list) == 1 && list[0].Fence == 0 && list[0].Meta.Visit == 0, "queue %q has %+v of the held key", queue, list)
	}
	_, err = p.ResumeKey(b.ctx, "in", key, "ann", "it is moved")
	b.ok(err, "ResumeKey")
	next(key)
	next(key)
	_, err = p.ResumeKey(b.ctx, "in", key, "ann", "again")
	b.must(errors.Is(err, fs.ErrNotExist), "a second ResumeKey returned %v", err)
}

func jobPauseFirst(b *storeBench) {
	p := b.process()
	_, canSkip := b.Store.(store.ByKey)
	var fair []delivery.QueueOption
	if canSkip {
		fair = append(fair, delivery.WithFairByKey(2))
	}
	in := b.quietQueue("in", fair...)
	around := b.quietQueue("around", append(fair, delivery.RetryAfter(b.units(1)))...)
	put := func(key string) {
		m := newMessage(key)
		m.Meta.Key, m.Payload = key, []byte(strconv.Quote(key))
		b.put("in", m)
	}
	put("first")
	_, err := p.PauseQueue(b.ctx, "in", "ann", "they migrate")
	b.ok(err, "PauseQueue")
	if canSkip {
		_, err = p.HoldKey(b.ctx, "in", "held", "ann", "their server is moved")
		b.ok(err, "HoldKey")
	}
	called := make(chan string, 100)
	defer b.runWorker(around, around.Source(in.Source(nil)), called)()
	next := func(want string) {
		select {
		case got := <-called:
			b.must(got == want, "a message of key %q was called, want one of key %q", got, want)
		case <-time.After(putPatience):
			b.fail("no message of key %q was called within %v", want, putPatience)
		}
	}
	reader := b.awaitPaused(p, "in")
	b.must(reader.Reads == "around", "the worker reports that it reads %q", reader.Reads)
	list := b.list("in", store.Filter{}, everything)
	b.must(len(list) == 1 && list[0].Fence == 0 && len(called) == 0, "a queue that is paused has %+v", list)
	_, err = p.ResumeQueue(b.ctx, "in", "ann", "done")
	b.ok(err, "ResumeQueue")
	next("first")
	if !canSkip {
		return
	}
	put("held")
	put("other")
	next("other")
	list = b.list("in", store.Filter{Key: "held"}, everything)
	b.must(len(list) == 1 && list[0].Fence == 0, "the queue has %+v of a key that is held", list)
	_, err = p.ResumeKey(b.ctx, "in", "held", "ann", "it is moved")
	b.ok(err, "ResumeKey")
	next("held")
}

// awaitPaused returns the report of a worker of a paused queue. The first report comes
// before the worker has read the orders.
func (b *storeBench) awaitPaused(p *process, queue string) jobs.Worker {
	for end := time.Now().Add(putPatience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		list, err := p.Workers(b.ctx)
		b.ok(err, "Workers")
		for _, w := range list {
			if w.Takes(queue) && w.Paused {
				return w
			}
		}
	}
	b.fail("no worker of queue %q has reported that it is paused within %v", queue, putPatience)
	return jobs.Worker{}
}

// runWorker starts a worker that sends a source's messages to called until end is called.
// Messages that fail go to a queue.
func (b *storeBench) runWorker(in *delivery.Queue[string], source delivery.Source[string], called chan<- string) (end func()) {
	quiet := slog.New(slog.DiscardHandler)
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, v string) (string, error) {
		called <- v
		return v, nil
	}), 0, 5, asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(quiet))
	ctx, stop := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { // ends with ctx
		_, err := delivery.Run(ctx, source, op, sinkOf(func([]message.Message[string]) {}), delivery.WithLogger(quiet))
		ended <- err
	}()
	return func() {
		stop()
		b.ok(<-ended, "Run")
	}
}

func jobTwo(b *storeBench) {
	const n = 2000
	ms := make([]store.Message, n)
	for i := range ms {
		ms[i] = newMessage(strconv.Itoa(i))
	}
	b.put("dead", ms...)
	p := b.process()
	first := p.start(jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", Max: n / 2})
	second := p.start(toOrders)
	type result struct {
		job jobs.Job
		err error
	}
	results := make(chan result, 4)
	for i := range 4 {
		j, err := jobs.New(b.open(), jobs.Config{Logger: slog.New(slog.DiscardHandler), Lease: 2 * time.Second})
		b.ok(err, "jobs.New")
		id := first.ID
		if i%2 == 1 {
			id = second.ID
		}
		go func() {
			job, err := j.Run(b.ctx, id, nil)
			results <- result{job, err}
		}()
	}
	patience := time.After(5 * time.Minute)
	for seen := 0; seen < 4; {
		select {
		case r := <-results:
			b.ok(r.err, "Run")
			b.must(r.job.Done == n/2, "two jobs of a queue, the first with half of it: one has done %+v", r.job.Progress)
			seen++
		case <-time.After(5 * time.Millisecond):
			b.Wait(20 * time.Millisecond) // of the leases
		case <-patience:
			b.fail("two processes do not end a job")
		}
	}
	b.must(len(b.list("dead", store.Filter{}, everything)) == 0, "something is left")
	got := map[string]bool{}
	for _, e := range b.list("orders", store.Filter{}, everything) {
		b.must(!got[e.Meta.ID] && e.Meta.Merges == 1, "message %s was merged twice", e.Meta.ID)
		got[e.Meta.ID] = true
	}
	b.must(len(got) == n, "%d of %d messages arrived", len(got), n)
}

func jobLog(b *storeBench) {
	p := b.process()
	const n = 3
	for range n {
		p.do(jobs.Spec{Do: store.Purge, Queue: "q", Filter: store.Filter{Provider: "<b>\u2028"}})
	}
	check := func() (lines int, err error) {
		for l, err := range p.Log(b.ctx) {
			if err != nil {
				return lines, err
			}
			lines++
			b.must(l.N == lines && len(l.Hash) == 64 && l.Job.Filter.Provider == "<b>\u2028", "line %d of the log is %+v", lines, l)
		}
		return lines, nil
	}
	lines, err := check()
	b.must(lines == 2*n && err == nil, "the log has %d lines, %v", lines, err)
	k := b.keeper()
	rs, err := k.Records(b.ctx, "log", "", 100)
	b.ok(err, "Records")
	write := func(r store.Record) {
		b.ok(b.update(func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, r) }), "Write")
	}
	for i, r := range rs {
		changed := r
		changed.Value = strings.Replace(r.Value, "ann", "bob", 1)
		write(changed)
		_, err := check()
		b.must(err != nil, "line %d was changed, and the log is whole", i+1)
		changed.Version, changed.Value = changed.Version+1, ""
		write(changed)
		_, err = check()
		b.must(err != nil, "line %d is missing, and the log is whole", i+1)
		r.Version = 0
		write(r)
		_, err = check()
		b.ok(err, "Log after a line is back")
	}
	// The last line gets another text and the right hash, but the log's last hash stays.
	before, _, _ := strings.Cut(rs[4].Value, " ")
	_, text, _ := strings.Cut(rs[5].Value, " ")
	text = strings.Replace(text, "ann", "bob", 1)
	rewritten := rs[5]
	rewritten.Value = fmt.Sprintf("%x %s", sha256.Sum256([]byte(before+text)), text)
	write(rewritten)
	_, err = check()
	b.must(err != nil, "the last line was written anew, and the log is whole")
	rewritten.Version, rewritten.Value = rewritten.Version+1, rs[5].Value
	write(rewritten)
	_, err = check()
	b.ok(err, "Log after its last line is back")
	added := store.Record{Kind: "log", Name: "000000000007", Value: rs[5].Value}
	write(added)
	_, err = check()
	b.must(err != nil, "a line was added, and the log is whole")
}

// jobBackends checks that an order for a backend reaches a worker and the log.
func jobBackends(b *storeBench) {
	p := b.process()
	_, err := p.HoldBackend(b.ctx, "pay", "", "no")
	b.must(err != nil, "a backend was held by nobody")
	_, err = p.HoldBackend(b.ctx, "pay", "ann", "before the start")
	b.ok(err, "HoldBackend")
	ctx, stop := context.WithCancel(b.ctx)
	got := make(chan jobs.BackendOrder, 1000)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		p.Work(ctx, func() jobs.Worker {
			return jobs.Worker{Backends: []jobs.Backend{{Name: "pay", State: "held", Limit: 7}}}
		},
			func(o jobs.BackendOrder) { got <- o })
	}()
	defer func() {
		stop()
		<-ended
	}()
	last := time.Time{}
	hears := func(what string, f func(o jobs.BackendOrder) bool) {
		for patience := time.Now().Add(2 * time.Minute); ; p.mock.Add(100 * time.Millisecond) {
			select {
			case o := <-got:
				b.must(o.Backend == "pay" && !o.At.Before(last), "a worker heard %+v", o)
				last = o.At
				if f(o) {
					return
				}
			case <-time.After(time.Millisecond):
				b.must(time.Now().Before(patience), "a worker did not hear of %s", what)
			}
		}
	}
	hears("a hold before its start", func(o jobs.BackendOrder) bool {
		return o.Held == "before the start (ann)" && o.Event == "hold" && o.By == "ann"
	})
	command := b.process() // another process
	_, err = command.LimitBackend(b.ctx, "pay", 5, "bob", "slow")
	b.ok(err, "LimitBackend")
	hears("a limit", func(o jobs.BackendOrder) bool {
		return o.Held == "before the start (ann)" && o.Limit != nil && *o.Limit == 5
	})
	_, err = command.ResumeBackend(b.ctx, "pay", "bob", "it is back")
	b.ok(err, "ResumeBackend")
	hears("the end of a hold", func(o jobs.BackendOrder) bool { return o.Held == "" && o.Event == "resume" && *o.Limit == 5 })
	_, err = command.LimitBackend(b.ctx, "pay", -1, "bob", "fast")
	b.ok(err, "LimitBackend")
	hears("the end of a limit", func(o jobs.BackendOrder) bool { return o.Limit == nil })
	orders, err := p.BackendOrders(b.ctx)
	b.must(err == nil && len(orders) == 1 && orders[0].Event == "limit", "the orders are %+v, %v", orders, err)
	for patience := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) { // steered beside its first report
		workers, err := p.Workers(b.ctx)
		if err == nil && len(workers) == 1 && workers[0].Backends[0].Limit == 7 {
			break
		}
		b.must(err == nil && time.Now().Before(patience), "the workers are %+v, %v", workers, err)
	}
	var events []string
	for l, err := range p.Log(b.ctx) {
		b.ok(err, "Log")
		events = append(events, l.Event+" "+l.Backend.Backend+" "+l.By)
	}
	b.must(slices.Equal(events, []string{"hold pay ann", "limit pay bob", "resume pay bob", "limit pay bob"}), "the log has %q", events)
}

func jobWorkers(b *storeBench) {
	p := b.process()
	b.put("dead", newMessage("a"))
	job := p.start(toOrders)
	ctx, stop := context.WithCancel(b.ctx)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		p.Work(ctx, func() jobs.Worker { return jobs.Worker{Queues: []string{"orders"}} }, nil)
	}()
	defer func() {
		stop()
		<-ended
	}()
	until := func(what string, f func() bool) {
		for patience := time.Now().Add(2 * time.Minute); !f(); time.Sleep(time.Millisecond) {
			b.must(time.Now().Before(patience), "%s", what)
			p.mock.Add(time.Second)
		}
	}
	workers := func() []jobs.Worker {
		all, err := p.Workers(b.ctx)
		b.ok(err, "Workers")
		return all
	}
	until("a worker runs no job", func() bool {
		now, err := p.Get(b.ctx, job.ID)
		b.ok(err, "Get")
		return now.Done == 1
	})
	until("a worker is not listed", func() bool { return len(workers()) == 1 })
	w := workers()[0]
	b.must(w.PID > 0 && !w.Since.IsZero() && !w.Seen.Before(w.Since) && slices.Equal(w.Queues, []string{"orders"}), "the worker is %+v", w)
	// A worker killed long ago is removed (law W3).
	b.ok(b.update(func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "worker", Name: "killed", Value: `{"id":"killed","seen":"2000-01-01T00:00:00Z"}`})
	}), "Write")
	until("a worker that was killed is listed for ever", func() bool { return len(workers()) == 1 })
	stop()
	<-ended
	b.must(len(workers()) == 0, "a worker that has ended is listed")
}
