package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/modeltest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// pair is a core and its model. Each operation is done to both. Elements are called a1,
// b2, …: the letter is the key, and the number grows.
type pair struct {
	*modeltest.Model
	r      *rig
	b      *batchRig // nil without batches
	house  *house    // of permits that are shared
	refuse error     // the sink refuses elements while it is set

	accepted int
	tasks    []*modeltest.Call // tasks for workers: handlers, or nil for the offer to the sink
	seen     int               // calls of the model
}

func newPair(t *rapid.T) *pair {
	c := modeltest.Config{
		Capacity: rapid.IntRange(1, 7).Draw(t, "slots"), MaxCalls: rapid.IntRange(1, 3).Draw(t, "permits"), KeyOrder: rapid.Bool().Draw(t, "keyed"),
		AttemptTimeout: rapid.SampledFrom([]time.Duration{0, 7 * time.Second}).Draw(t, "attempt timeout"),
		OnFailure:      rapid.SampledFrom([]modeltest.Policy{modeltest.Drop, modeltest.HandOver}).Draw(t, "policy"), FirstOffer: firstOffer, LastOffer: lastOffer,
		EarlyTimeout: rapid.Bool().Draw(t, "early timeout"), Handler: rapid.Bool().Draw(t, "handler"), Blocking: rapid.Bool().Draw(t, "blocking"),
	}
	if c.KeyOrder {
		c.MaxWaiting = rapid.IntRange(0, 2).Draw(t, "most")
	}
	return begin(t, c, rapid.Bool().Draw(t, "is shared"))
}

func newBatchPair(t *rapid.T) *pair {
	return begin(t, modeltest.Config{
		Capacity: rapid.IntRange(1, 8).Draw(t, "slots"), MaxCalls: rapid.IntRange(1, 3).Draw(t, "permits"), Blocking: true, OnFailure: modeltest.Drop,
		BatchSize: rapid.IntRange(1, 5).Draw(t, "size"), BatchWait: time.Duration(rapid.IntRange(0, 15).Draw(t, "wait")) * time.Second,
	}, true)
}

func begin(t *rapid.T, c modeltest.Config, isShared bool) *pair {
	c.Unordered = c.KeyOrder || rapid.Bool().Draw(t, "unordered")
	c.Timeout, c.Retries = 35*time.Second, 2
	c.Backoff = func(int) time.Duration { return 10 * time.Second }
	c.Again = func(o modeltest.Outcome) bool { return o.Err != "" }
	p := &pair{house: newHouse(0)}
	p.begin(t, modeltest.New(c))
	if isShared {
		p.Shared = modeltest.Shared{
			Some: true, Limit: rapid.IntRange(1, 3).Draw(t, "shared permits"), Interval: time.Duration(rapid.IntRange(0, 4).Draw(t, "interval")) * time.Second,
		}
		p.house = newHouse(p.Shared.Limit)
		p.house.interval, p.house.next = p.Shared.Interval, p.r.clock.at
		p.r.share(p.house)
	}
	return p
}

// begin makes a core with the settings of the model.
func (p *pair) begin(t require.TestingT, m *modeltest.Model) {
	p.Model, p.tasks, p.seen = m, nil, 0
	m.SinkOpen = false
	strategy := strategies.FixedDelay[string](m.Retries, m.Backoff(1)).RetryIfException(predicates.HasException)
	change := func(c *setup) {
		if m.KeyOrder {
			byFirstLetter(c)
		}
		c.Timeout, c.AttemptTimeout, c.MaxCalls, c.MaxWaitingPerKey, c.EarlyTimeout = m.Timeout, m.AttemptTimeout, m.MaxCalls, m.MaxWaiting, m.EarlyTimeout
		if c.Queue = queue.NewOrdered[*Slot[string, string]](m.Capacity); m.Unordered {
			c.Queue = queue.NewUnordered[*Slot[string, string]](m.Capacity)
		}
		c.Limit = 1_000_000 * time.Hour
		if m.OnFailure == modeltest.HandOver {
			c.OnFailure = toSink
			c.Sink = func(context.Context, Report[string]) error { return p.refuse }
		}
		if m.Handler {
			c.Handle = defaultOfEven
		}
	}
	if m.BatchSize > 0 {
		p.b = withBatches(t, m.BatchSize, m.BatchWait, strategy, change)
		p.r = p.b.rig
		return
	}
	if p.r = newRig(t, strategy, change); m.Blocking {
		p.r.answer = occupy
	}
}

// some draws a call of the model for which is returns true, if there is one.
func (p *pair) some(t *rapid.T, is func(c *modeltest.Call) bool) *modeltest.Call {
	calls := slices.DeleteFunc(slices.Clone(p.Calls), func(c *modeltest.Call) bool { return c.Attempt == 0 || !is(c) })
	if len(calls) == 0 {
		t.Skip()
	}
	return rapid.SampledFrom(calls).Draw(t, "call")
}

func (p *pair) accept(t *rapid.T) {
	if require.Equal(t, p.Model.HasSlot(), p.r.HasSlot()); !p.r.HasSlot() { // law Q2
		t.Skip()
	}
	p.accepted++
	if rapid.IntRange(0, 5).Draw(t, "kind") == 0 {
		p.r.AcceptControl(mark(p.accepted))
		p.Put(modeltest.Input{ID: p.accepted, Name: fmt.Sprintf("|%d", p.accepted), Control: true})
		return
	}
	key := rapid.IntRange(0, 2).Draw(t, "key")
	name := fmt.Sprintf("%c%d", 'a'+key, p.accepted)
	p.r.Accept(name, call.Message{})
	p.Put(modeltest.Input{ID: p.accepted, Name: name, Key: key})
	if p.b != nil {
		p.StartAtOnce()
		p.handOut(t)
	}
}

func (p *pair) wait(t *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second
	p.r.clock.at = p.r.clock.at.Add(d)
	p.Now += d
}

func (p *pair) endRetries(t *rapid.T) { // law A5
	if p.b != nil {
		if rapid.IntRange(0, 5).Draw(t, "maybe") > 0 {
			t.Skip()
		}
		p.b.batches.EndInput()
		p.NoneFollow = true
	}
	p.r.EndRetries()
	p.Model.EndRetries()
}

func (p *pair) complete(t *rapid.T) {
	c := p.some(t, func(c *modeltest.Call) bool { return !c.Ended && !c.Answered })
	a, o := p.r.calls[c.Key()], modeltest.Outcome{}
	switch how := rapid.IntRange(0, 4).Draw(t, "how"); {
	case how < 2:
		o.Results = []string{c.Key()}
		a.Complete(c.Key())
	case how == 2:
		a.Complete()
	default:
		o.Err = "broken"
		a.CompleteExceptionally(errBroken)
	}
	if p.Blocking && !rapid.Bool().Draw(t, "runs on") { // like a wrapper that has further work
		a.Returned()
		p.Return(c)
	}
	p.Complete(c, o)
}

func (p *pair) completeLate(t *rapid.T) { // law A2
	if p.Blocking {
		t.Skip()
	}
	c := p.some(t, func(c *modeltest.Call) bool { return c.Ended || c.Answered })
	p.r.complete(c.Key())
	p.Complete(c, modeltest.Outcome{})
}

func (p *pair) returns(t *rapid.T) {
	c := p.some(t, func(c *modeltest.Call) bool { return p.Blocking && c.RunsOn() })
	p.Return(c)
	p.r.calls[c.Key()].Returned()
}

func (p *pair) others(t *rapid.T) {
	switch what := rapid.IntRange(0, 2).Draw(t, "what"); {
	case !p.Shared.Some:
		t.Skip()
	case what == 0 && p.house.Take():
		require.Less(t, p.r.Running()+p.Shared.Others, p.Shared.Limit)
		p.Shared.Others++
	case what == 1 && p.Shared.Others > 0:
		p.Shared.Others--
		p.house.Release()
	case what == 2:
		p.Shared.Limit = rapid.IntRange(0, 3).Draw(t, "limit")
		p.house.limit = p.Shared.Limit
	}
}

// work runs the tasks for workers: the handler has a result for even elements, and the
// sink takes or refuses its offer.
func (p *pair) work(t *rapid.T) {
	if p.refuse = nil; rapid.IntRange(0, 3).Draw(t, "sink") == 0 {
		p.refuse = errOver
	}
	p.r.work()
	tasks := p.tasks
	p.tasks = nil
	for _, c := range tasks {
		switch {
		case c == nil && p.refuse != nil:
			p.Refuse()
		case c == nil:
			p.Take()
		case c.Element.ID%2 == 0:
			p.Complete(c, modeltest.Outcome{Results: []string{"default-" + c.Element.Name}})
		default:
			p.Complete(c, modeltest.Outcome{Err: "no default"})
		}
	}
}

func (p *pair) restart(t *rapid.T) {
	if p.MaxWaiting > 0 || p.Shared.Some || rapid.IntRange(0, 2).Draw(t, "really") > 0 {
		t.Skip()
	}
	items := p.r.Items(nil, true)
	p.r.stop(nil)
	p.begin(t, p.Model.Restore(p.Model.Items()))
	for _, it := range items {
		p.r.Restore(it, 0)
	}
}

// step runs a step and compares.
func (p *pair) step(t *rapid.T) {
	for p.b != nil && p.StartFull() {
		p.r.Step()
		p.handOut(t)
	}
	p.r.Step()
	p.Step()
	if p.b != nil {
		p.handOut(t)
	}
	p.checkItems(t)
	p.r.emit()
	p.Settle()
	for ; p.seen < len(p.Calls); p.seen++ {
		if c := p.Calls[p.seen]; c.Attempt == 0 {
			p.tasks = append(p.tasks, c)
		}
	}
	if p.Offered() != nil && !slices.Contains(p.tasks, nil) {
		p.tasks = append(p.tasks, nil)
	}
	require.Equal(t, p.history(), strings.Join(p.r.history, " "))
	require.Equal(t, len(p.Queue), p.r.Len())
	require.Len(t, p.r.tasks, len(p.tasks))
	if p.KeyOrder {
		checkLines(t, p.r)
	}
	want := p.Stats()
	if p.Shared.Some {
		require.EqualValues(t, want.Running+int64(p.Shared.Others), p.house.Used())
	}
	require.Equal(t, want.LateCompletions, p.r.Host.Late())
	got, _ := p.r.Counts()
	// The driver counts these:
	want.LateCompletions, want.Emitted, want.Capacity, want.MaxCalls, want.OldestAge, got.LastError = 0, 0, 0, 0, 0, nil
	require.Equal(t, want, got)
}

// handOut takes the batches that were formed and compares them with the model's.
func (p *pair) handOut(t *rapid.T) {
	var want []string
	for ; p.seen < len(p.Calls); p.seen++ {
		want = append(want, p.Calls[p.seen].Key())
	}
	got, history := p.b.forming, p.r.history
	p.b.handOut()
	p.r.history = history // a model notes no batches
	require.Equal(t, want, got)
	require.Len(t, p.b.formed, len(p.Batches))
}

func (p *pair) returnBatch(t *rapid.T) {
	if len(p.Batches) == 0 {
		t.Skip()
	}
	i := rapid.IntRange(0, len(p.Batches)-1).Draw(t, "batch")
	job := p.b.formed[i]
	p.b.formed = slices.Delete(p.b.formed, i, i+1)
	var want []string
	p.ReturnBatch(i, func(c *modeltest.Call) modeltest.Outcome { // law A5: members that have timed out are not called
		want = append(want, c.Key())
		if rapid.Bool().Draw(t, "broken") {
			p.b.broken[c.Key()] = true
			return modeltest.Outcome{Err: "broken"}
		}
		return modeltest.Outcome{Results: []string{c.Key()}}
	})
	job()
	require.Equal(t, want, p.b.called)
}

// checkItems compares the items of a checkpoint taken now (law C1).
func (p *pair) checkItems(t *rapid.T) {
	want, got := []string{}, []string{}
	for _, it := range p.Model.Items() {
		want = append(want, fmt.Sprintf("%v made %d", it, it.Made))
	}
	for _, it := range p.r.Items(nil, true) {
		got = append(got, fmt.Sprintf("%s made %d", names([]Item[string, string]{it}), it.Attempts))
	}
	require.Equal(t, want, got)
}

// history returns the model's history as a rig records it.
func (p *pair) history() string {
	texts := []string{}
	for _, e := range p.Events {
		switch {
		case e.Kind == modeltest.Emitted:
			texts = append(texts, e.Name)
		case e.Kind == modeltest.HandedOver:
			texts = append(texts, "!"+e.Name)
		case e.Kind != modeltest.Started || p.b == nil: // else see handOut
			texts = append(texts, string(e.Kind)+e.Name+e.Detail)
		}
	}
	return strings.Join(texts, " ")
}

// The core follows the laws for every order of events: A1 to A5, Q1, Q2, T1, C1 and, if
// it is keyed, K1. At the end all elements have ended, so none was starved, and no key
// has a line.
func TestCore_FollowsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"accept": p.accept, "complete": p.complete, "complete late": p.completeLate, "others": p.others, "return": p.returns,
			"work": p.work, "restart": p.restart, "wait": p.wait, "end retries": p.endRetries, "": p.step,
		})
		p.allEnd(t)
	})
}

// Batches follow the rules for every order of events: they contain only elements that may
// start, with one permit and one step of the pace each. A member ends once (A1), and
// fails or is called again alone.
func TestBatchesFollowTheirModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newBatchPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"accept": p.accept, "return": p.returnBatch, "others": p.others, "wait": p.wait, "end of input": p.endRetries, "": p.step,
		})
		p.allEnd(t)
	})
}

func (p *pair) allEnd(t *rapid.T) {
	r, pass := p.r, p.r.pass
	if p.b != nil {
		pass = p.b.pass
	}
	for n := 0; r.Len() > 0 || r.Running() > 0; n++ {
		require.Less(t, n, 1000)
		for _, a := range r.calls { // calls that block for ever return now
			if p.Blocking && !a.HasReturned() {
				a.Returned()
			}
		}
		for p.b != nil && len(p.b.formed) > 0 {
			p.b.returns()
		}
		pass(time.Minute)
		p.refuse = nil
		r.work()
		r.idle()
	}
	if p.KeyOrder {
		require.Empty(t, r.setup.Keys.(*keys[string, string, string]).lines)
	}
	require.Equal(t, r.Queue.Cap(), r.FreeSlots())
	r.end()
	require.Equal(t, p.Shared.Others, p.house.Used())
}

// checkLines checks law K1 on the core itself.
func checkLines(t require.TestingT, r *rig) {
	busy := map[string]int{}
	for e := r.first(); e != nil; e = e.next() {
		switch e.phase {
		case preparing, running, deciding, backoff, ready:
			busy[e.in[:1]]++
		}
	}
	for key, n := range busy {
		require.Equal(t, 1, n, "elements of %s that are called or wait for a retry", key)
	}
}

// byFirstLetter orders elements by the first letter of their names.
func byFirstLetter(c *setup) {
	c.Queue = queue.NewUnordered[*Slot[string, string]](8)
	c.Keys = NewKeys[string, string, string](func(in string) string { return in[:1] }, unusable)
}

func unusable(key any) error { return fmt.Errorf("unusable key %v", key) }

// occupy makes a call that keeps its permit until it returns.
func occupy(_ string, a *call.Attempt[string]) error {
	a.Occupy(false)
	return nil
}
