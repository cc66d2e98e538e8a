package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/timers"
)

var (
	errBroken  = errors.New("broken")
	errControl = errors.New("control element")
	errLimit   = errors.New("handler limit")
	errOver    = errors.New("over")
)

// rig drives a core without goroutines. Tasks for workers wait until the test runs them.
// The clock is moved by hand. The test completes calls by name: "a#2" is the second
// attempt of a. The history records an output by its name, a control element as "|5", a
// call as "(a#1", and a failure as "!a".
type rig struct {
	*Machine[string, string]
	setup     *setup
	messages  *Messages[string, string]
	observing *Observing[string, string] // nil without observers
	sink      *HandOver[string, string]  // nil without a sink
	batches   *Batches[string, string]   // nil without batches
	tb        require.TestingT
	clock     *handClock
	stop      context.CancelCauseFunc // ends the user's context

	tasks   []func()                   // tasks given to Host.Run
	jobs    []call.Job[string, string] // jobs for the workers
	calls   map[string]*call.Attempt[string]
	answer  func(name string, a *call.Attempt[string]) error // called for each call, unless it is nil
	history []string
}

// handClock is moved by hand. The core sets no alarms.
type handClock struct {
	clock.Clock
	at time.Time
}

func (c *handClock) Now() time.Time                      { return c.at }
func (c *handClock) Since(start time.Time) time.Duration { return c.at.Sub(start) }

// mark is a control element.
type mark int

// setup has the options of a core, and the functions of its user.
type setup struct {
	Config[string, string]

	Invoke     func(ctx context.Context, in string, a *call.Attempt[string]) error
	RunBatch   func(b *call.Batch[string, string])
	TimeoutFor func(in string) time.Duration
	Cost       func(in string) float64 // of an attempt at a backend; nil for 1
	OnFailure  onFailure
	Sink       func(ctx context.Context, r Report[string]) error // with toSink
	Handle     func(ctx context.Context, r Report[string], timedOut bool) ([]string, error)
	HandlesAll bool
	Limit      time.Duration // of Handle

	TimedOut  func(r Report[string], out TimedOut) error
	RunFailed func(r Report[string]) error
	GivenUp   func(r Report[string], how observe.EndKind)

	IsControl    func(v any) bool
	IsEndOfInput func(v any) bool

	HandlerBroke  func(failure error, timedOut bool, broken error) error
	NotTaken      func(f Report[string], err error, wait time.Duration)
	ObserverBroke func(err error)
	SourceBroke   func(err error)
	LogsRetries   func() bool
	Retrying      func(r Report[string], d decision.Decision)
	NotRetried    func(r Report[string], d decision.Decision)
}

// onFailure selects the fate of failed elements.
type onFailure uint8

const (
	drop onFailure = iota
	failRun
	toSink
)

// newRig returns a rig with an ordered queue of 4 slots, which change can modify.
func newRig(tb require.TestingT, strategy strategies.Retry[string], change func(c *setup)) *rig {
	r := &rig{
		tb: tb, clock: &handClock{at: time.Unix(1_000_000, 0)},
		calls: make(map[string]*call.Attempt[string]),
	}
	if strategy == nil {
		strategy = strategies.NoRetry[string]()
	}
	var user context.Context
	user, r.stop = context.WithCancelCause(context.Background())
	host := &call.Host{
		User: user, Values: context.Background(), Sleeper: call.NewSleeper(),
		Run: func(task func()) { r.tasks = append(r.tasks, task) },
	}
	host.Life, host.Cancel = context.WithCancelCause(user)
	c := &setup{
		Config: Config[string, string]{
			Queue: queue.NewOrdered[*Slot[string, string]](4), Host: host,
			Timers: timers.NewService[*Slot[string, string]](r.clock, func() {}),
			Policy: decision.StepsOf(strategies.PolicyOf(strategy)), Random: rand.New(rand.NewPCG(1, 1)),
			Limits: Limits{Timeout: time.Minute}, Jobs: &r.jobs,
		},
		Invoke: r.invoke,
		TimedOut: func(r Report[string], out TimedOut) error {
			if out.Attempt {
				return fmt.Errorf("attempt %d timed out", r.Attempts)
			}
			return fmt.Errorf("timed out after %v, early %v: %w", r.Elapsed, out.Early, context.DeadlineExceeded)
		},
		RunFailed:     func(f Report[string]) error { r.note("!" + f.Element); return f.Err },
		GivenUp:       func(f Report[string], _ observe.EndKind) { r.note("!" + f.Element) },
		Limit:         time.Second,
		IsControl:     func(v any) bool { return v == "control" },
		IsEndOfInput:  func(v any) bool { return v == mark(0) },
		HandlerBroke:  func(failure error, _ bool, broken error) error { return errors.Join(failure, broken) },
		NotTaken:      func(f Report[string], _ error, wait time.Duration) { r.note(fmt.Sprintf("?%s+%v", f.Element, wait)) },
		ObserverBroke: func(err error) { r.note("broke: " + err.Error()) },
	}
	if change != nil {
		change(c)
	}
	r.build(c)
	return r
}

// build makes the core.
func (r *rig) build(c *setup) {
	c.Host.Clock = c.Timers
	c.User = user{c}
	c.FailsRun = c.OnFailure == failRun
	c.HandsOver = c.OnFailure == toSink
	c.OwnTimeouts = c.TimeoutFor != nil
	c.ChecksResults = c.IsControl != nil
	if c.Handle != nil {
		c.Handling = &Handling{All: c.HandlesAll, Limit: c.Limit, ErrLimit: errLimit}
	}
	if c.Host.Seat != nil && c.Calls == nil {
		c.Calls = &BackendCalls{HasCost: c.Cost != nil}
	}
	r.Machine, r.setup = New(c.Config), c
	r.messages, r.observing, r.batches, r.sink = r.Messages(), r.Observing(), r.Batches(), r.HandOver()
}

// user is the user of a core, with the functions of its setup.
type user struct{ *setup }

func (u user) Invoke(ctx context.Context, in string, a *call.Attempt[string]) error {
	return u.setup.Invoke(ctx, in, a)
}

func (u user) CallBatch(b *call.Batch[string, string]) { u.RunBatch(b) }

func (u user) CheckResults(results []string) error {
	if slices.ContainsFunc(results, func(v string) bool { return u.IsControl(v) }) {
		return errControl
	}
	return nil
}

func (u user) TimeoutFor(in string) time.Duration { return u.setup.TimeoutFor(in) }

func (u user) CostOf(in string) float64 { return u.Cost(in) }

func (u user) TenantOf(string) string { return "" }

func (u user) HandleFailure(ctx context.Context, r Report[string], timedOut bool) ([]string, error) {
	return u.Handle(ctx, r, timedOut)
}

func (u user) HandOver(ctx context.Context, r Report[string]) error { return u.Sink(ctx, r) }

func (u user) AsksForTimeline(string) bool { return false }

func (u user) KeepTimeline(Report[string], observe.EndKind, []observe.Step) {}

func (u user) TimeoutError(r Report[string], out TimedOut) error { return u.TimedOut(r, out) }

func (u user) UndecidedError(d decision.Decision) error {
	if d.NoRetryReason == decision.Failed {
		return d.Err
	}
	return fmt.Errorf("exhausted: %v", d.NoRetryReason)
}

func (u user) HandlerError(failure error, timedOut bool, broken error) error {
	return u.HandlerBroke(failure, timedOut, broken)
}

func (u user) RunError(r Report[string]) error { return u.RunFailed(r) }

func (u user) LogsDebug() bool { return u.LogsRetries != nil && u.LogsRetries() }

func (u user) LogDecision(r Report[string], d decision.Decision, again bool) {
	if again {
		u.Retrying(r, d)
	} else {
		u.NotRetried(r, d)
	}
}

func (u user) LogGivenUp(r Report[string], how observe.EndKind) { u.GivenUp(r, how) }

func (u user) LogNotTaken(r Report[string], err error, wait time.Duration) { u.NotTaken(r, err, wait) }

func (u user) LogObserverPanic(err error) { u.ObserverBroke(err) }

func (u user) LogSourcePanic(err error) { u.SourceBroke(err) }

func (r *rig) Accept(in string, m call.Message) {
	if m != (call.Message{}) {
		r.messages.SetNext(m)
	}
	r.Machine.Accept(in)
}

func (r *rig) AcceptControl(v any) { r.Machine.AcceptControl(v, !r.setup.IsEndOfInput(v)) }

func (r *rig) HasSlot() bool { return r.FreeSlots() > 0 }

func (r *rig) Restore(it Item[string, string], number int64) {
	if m, ok := it.Rest.(call.Message); ok {
		r.messages.SetNext(m)
	}
	r.Machine.Restore(it, number)
}

func (r *rig) Step() { r.Machine.Step() }

func (r *rig) SettleMessages() {
	r.messages.Settle()
}

func (r *rig) Report() {
	if r.observing != nil {
		r.observing.Report()
	}
}

func unordered(c *setup) {
	c.Queue = queue.NewUnordered[*Slot[string, string]](4)
}

func (r *rig) note(what string) { r.history = append(r.history, what) }

func (r *rig) invoke(ctx context.Context, in string, a *call.Attempt[string]) error {
	name := fmt.Sprintf("%s#%v", in, ctx.Value(call.NumberKey{}))
	r.note("(" + name)
	r.calls[name] = a
	if r.answer == nil {
		return nil
	}
	return r.answer(name, a)
}

// feed accepts elements, "|5" as a control element.
func (r *rig) feed(elements string) {
	for in := range strings.FieldsSeq(elements) {
		require.True(r.tb, r.HasSlot(), "no room for %s", in)
		if n, control := strings.CutPrefix(in, "|"); control {
			var m mark
			_, err := fmt.Sscan(n, &m)
			require.NoError(r.tb, err)
			r.AcceptControl(m)
		} else {
			r.Accept(in, call.Message{})
		}
	}
}

// complete completes a call with one result, the name of the call.
func (r *rig) complete(names string) {
	for name := range strings.FieldsSeq(names) {
		require.Contains(r.tb, r.calls, name)
		r.calls[name].Complete(name)
	}
}

func (r *rig) fail(names string) {
	for name := range strings.FieldsSeq(names) {
		require.Contains(r.tb, r.calls, name)
		r.calls[name].CompleteExceptionally(errBroken)
	}
}

// step runs a step and removes the elements that leave.
func (r *rig) step() {
	r.Step()
	r.emit()
}

func (r *rig) emit() {
	defer r.Report()
	for {
		results, control := r.Head()
		switch {
		case control != nil:
			r.note(fmt.Sprintf("|%d", control))
		case len(results) > 0:
			r.history = append(r.history, results...)
		default:
			return
		}
		r.leave()
	}
}

// leave makes the head leave.
func (r *rig) leave() {
	r.PopHead(observe.Emitted)
	if r.observing == nil {
		return
	}
	if left := r.observing.TakeLeaving(); left != nil {
		r.observing.RecordEnd(left, observe.Emitted)
	}
}

// idle runs steps until the core has no work before some time passes.
func (r *rig) idle() {
	for n := 0; r.Next() <= r.Timers.Now(); n++ { // Now is before everything
		require.Less(r.tb, n, 1000, "the core is never done")
		r.step()
	}
	r.emit()
}

// pass lets time pass, from one due step to the next.
func (r *rig) pass(d time.Duration) {
	end := r.Timers.Now() + d
	for r.idle(); ; r.idle() {
		next := r.Next()
		r.clock.at = r.clock.at.Add(min(next, end) - r.Timers.Now())
		r.NoteSlept()
		if next > end {
			return
		}
	}
}

// Jobs hands out the jobs and returns their number.
func (r *rig) Jobs(offer func(jobs ...call.Job[string, string])) (n int) {
	if n = len(r.jobs); n > 0 {
		offer(r.jobs...)
		r.jobs = nil
	}
	return n
}

// work runs the tasks that wait for workers.
func (r *rig) work() {
	for len(r.tasks) > 0 {
		task := r.tasks[0]
		r.tasks[0] = nil
		r.tasks = r.tasks[1:]
		task()
	}
}

// took returns the history since its last call.
func (r *rig) took() string {
	h := strings.Join(r.history, " ")
	r.history = nil
	return h
}

// balance checks law A1 on the counters.
func (r *rig) balance() {
	c, _ := r.Counts()
	require.Equal(r.tb, c.Accepted, c.InFlight+c.Completed+c.Dropped+c.HandedOver+c.Failed+c.Abandoned, "%+v", c)
	require.EqualValues(r.tb, r.Running(), c.Running)
}

// end checks that no element, call or timer is left.
func (r *rig) end() {
	r.balance()
	require.Zero(r.tb, r.Len())
	require.Zero(r.tb, r.Running())
	require.Equal(r.tb, Never, r.Next())
	r.stop(nil)
}

// retries is a strategy that retries errors and empty results after a delay.
func retries(n int, delay time.Duration) strategies.Retry[string] {
	return strategies.FixedDelay[string](n, delay).
		RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException)
}

// head3 is Head with the message of the head.
func (r *rig) head3() (results []string, m call.Message, control any) {
	if results, control = r.Machine.Head(); len(results) > 0 && r.messages.Seen {
		m = r.messages.Head()
	}
	return results, m, control
}

// onGoroutine runs f on a goroutine that user code may end.
func onGoroutine(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// exitedBy checks that user code has failed the run by runtime.Goexit (law A6), and ends
// the run.
func (r *rig) exitedBy(code string) {
	_, err := r.Failure()
	exit, ok := errors.AsType[*GoexitError](err)
	require.True(r.tb, ok, "%v", err)
	require.Equal(r.tb, code, exit.Code)
	require.Zero(r.tb, r.FreeSlots())
	for _, s := range r.Abandon() {
		r.Ended(s, observe.Abandoned)
	}
	r.work()
	r.balance()
	c, _ := r.Counts()
	require.Zero(r.tb, c.InFlight)
	require.Equal(r.tb, r.MaxCalls, r.FreePermits())
}
