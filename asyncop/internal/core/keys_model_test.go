package core

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// keyModel knows what a key-ordered core does, by law K1. Elements are called a1, b2, …: the letter is the key, and the
// number grows. Errors are retried up to modelRetries times after modelDelay, within modelTimeout.
type keyModel struct {
	slots, permits, most int           // most: elements that may wait for their key
	attemptTimeout       time.Duration // 0: none
	handsOver, handler   bool          // handler: it has a result for even elements, and none for the others
	blocking             bool          // calls run on when their attempts have timed out
	finishing            bool

	now       time.Duration
	clicks    int
	elements  []*keyed
	completed []*keyed
	failing   []*keyed          // to be offered now
	offered   *keyed            // to the sink
	tasks     []*keyed          // for workers: handlers, and the offer
	outlived  map[string]string // calls that run on, and their keys
	history   []string
}

type keyed struct {
	name, key, result string // name "": a control element, which is n
	n, attempts       int
	phase             string
	inLane            bool
	order             int // when its timer was armed, or it became ready
	accepted, due     time.Duration
	wait              time.Duration // before its last offer
}

func (m *keyModel) note(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *keyModel) enter(e *keyed, phase string, due time.Duration) {
	m.clicks++
	e.phase, e.order, e.due = phase, m.clicks, due
}

func (m *keyModel) in(phases ...string) (in []*keyed) {
	for _, e := range m.elements {
		if slices.Contains(phases, e.phase) {
			in = append(in, e)
		}
	}
	return in
}

func (m *keyModel) lane(key string) (lane []*keyed) {
	for _, e := range m.elements {
		if e.inLane && e.key == key {
			lane = append(lane, e)
		}
	}
	return lane
}

func (m *keyModel) first(e *keyed) bool { return m.lane(e.key)[0] == e }

func (m *keyModel) kept(key string) bool {
	for _, k := range m.outlived {
		if k == key {
			return true
		}
	}
	return false
}

// mayCall is the law: one at a time, in input order.
func (m *keyModel) mayCall(e *keyed) bool { return m.first(e) && !m.kept(e.key) }

func (m *keyModel) hasRoom() bool {
	for _, e := range m.elements {
		if e.inLane && m.most > 0 && len(m.lane(e.key)) > m.most {
			return false
		}
	}
	return len(m.elements) < m.slots
}

func (m *keyModel) used() int { return len(m.in("running")) + len(m.outlived) }

// put accepts an element, or a control element without a name.
func (m *keyModel) put(name string, n int) *keyed {
	e := &keyed{name: name, n: n, phase: "control", accepted: m.now}
	m.elements = append(m.elements, e)
	if name != "" {
		e.key, e.inLane, e.phase = name[:1], true, "fresh"
		if !m.mayCall(e) {
			e.phase = "behind"
		}
	}
	return e
}

func (m *keyModel) startNew(e *keyed) {
	if len(m.in("ready")) == 0 && len(m.in("fresh")) == 1 && e.phase == "fresh" {
		m.start()
	}
}

// start starts what waits for a permit: retries first, the oldest first.
func (m *keyModel) start() {
	for m.used() < m.permits {
		waiting := slices.SortedFunc(slices.Values(m.in("ready")), func(a, b *keyed) int {
			return cmp.Or(cmp.Compare(a.accepted, b.accepted), a.order-b.order)
		})
		waiting = append(waiting, m.in("fresh")...)
		if len(waiting) == 0 {
			return
		}
		e := waiting[0]
		e.attempts++
		e.result = ""
		due := time.Duration(-1)
		if m.attemptTimeout > 0 {
			due = m.now + m.attemptTimeout
		}
		m.enter(e, "running", due)
		m.note("(%s#%d", e.name, e.attempts)
	}
}

// ended takes e out of its lane: the next one has its turn.
func (m *keyModel) ended(e *keyed) {
	wasFirst := m.first(e)
	e.inLane = false
	if !wasFirst {
		return
	}
	lane := m.lane(e.key)
	for len(lane) > 0 && lane[0].phase == "done" {
		m.completed = append(m.completed, lane[0])
		lane[0].inLane = false
		lane = lane[1:]
	}
	if len(lane) > 0 && lane[0].phase == "failing" {
		m.failing = append(m.failing, lane[0])
	}
	m.release(e.key)
}

func (m *keyModel) release(key string) {
	lane := m.lane(key)
	switch {
	case len(lane) == 0 || m.kept(key):
	case lane[0].phase == "behind":
		lane[0].phase = "fresh"
	case lane[0].phase == "parked":
		m.enter(lane[0], "ready", 0)
	}
}

// settle ends e with its result, or without one.
func (m *keyModel) settle(e *keyed, result string) {
	e.result = result
	m.enter(e, "done", 0)
	if m.first(e) {
		m.completed = append(m.completed, e)
		m.ended(e)
	}
}

func (m *keyModel) fail(e *keyed) {
	if m.handsOver {
		m.enter(e, "failing", -1)
		if m.first(e) {
			m.failing = append(m.failing, e)
		}
		return
	}
	m.note("!%s", e.name)
	m.enter(e, "ended", 0)
	m.completed = append(m.completed, e)
	m.ended(e)
}

// handOver offers the oldest of those that have failed, one at a time.
func (m *keyModel) handOver() {
	if m.offered == nil && len(m.failing) > 0 {
		m.offered, m.failing = m.failing[0], m.failing[1:]
		m.tasks = append(m.tasks, m.offered)
	}
}

// work does what waits for workers: the sink takes what it is offered, or not.
func (m *keyModel) work(refuse bool) {
	tasks := m.tasks
	m.tasks = nil
	for _, e := range tasks {
		switch {
		case e != m.offered && e.n%2 == 0:
			m.settle(e, "default-"+e.name)
		case e != m.offered:
			m.fail(e)
		case refuse:
			m.offered = nil
			e.wait = min(max(firstOffer, 2*e.wait), lastOffer)
			m.enter(e, "failing", m.now+e.wait)
			m.note("?%s+%v", e.name, e.wait)
		default:
			m.offered = nil
			m.enter(e, "ended", 0)
			m.completed = append(m.completed, e)
			m.ended(e)
			m.note("!%s", e.name)
		}
	}
}

// outcome is that of a running call.
func (m *keyModel) outcome(e *keyed, result string) {
	switch {
	case result != "error":
		m.settle(e, result)
	case e.attempts > modelRetries || m.finishing:
		m.fail(e)
	default: // law A5: one that cannot start before the deadline waits for that
		m.enter(e, "backoff", min(m.now+modelDelay, e.accepted+modelTimeout))
	}
}

func (m *keyModel) expire(e *keyed) {
	if m.blocking {
		m.outlived[fmt.Sprintf("%s#%d", e.name, e.attempts)] = e.key
	}
}

func (m *keyModel) timeOut(e *keyed) {
	if e.phase == "running" {
		m.expire(e)
	}
	if m.handler {
		m.enter(e, "handling", -1)
		m.tasks = append(m.tasks, e)
		return
	}
	m.fail(e)
}

func (m *keyModel) ready(e *keyed) {
	m.enter(e, "ready", 0)
	if !m.mayCall(e) {
		e.phase = "parked"
	}
}

// turn lets what is due happen: deadlines first (law A5), then timers in the order in which they are due (law T1).
func (m *keyModel) turn() {
	for _, e := range m.in("fresh", "behind", "running", "backoff", "ready", "parked") {
		if e.accepted+modelTimeout <= m.now {
			m.timeOut(e)
		}
	}
	due := slices.SortedFunc(slices.Values(m.in("backoff", "running", "failing")), func(a, b *keyed) int {
		return cmp.Or(cmp.Compare(a.due, b.due), a.order-b.order)
	})
	for _, e := range due {
		switch {
		case e.due > m.now || e.due < 0:
		case e.phase == "backoff":
			m.ready(e)
		case e.phase == "failing":
			e.due = -1
			m.failing = append(m.failing, e)
		default:
			m.expire(e)
			m.outcome(e, "error")
		}
	}
	m.start()
	m.handOver()
}

// emit lets leave what may (law Q1).
func (m *keyModel) emit() {
	for len(m.elements) > 0 {
		wall := slices.IndexFunc(m.elements, func(e *keyed) bool { return e.name == "" })
		if wall < 0 {
			wall = len(m.elements)
		}
		i := slices.IndexFunc(m.completed, func(e *keyed) bool { return slices.Contains(m.elements[:wall], e) })
		switch {
		case i >= 0:
			e := m.completed[i]
			if e.result != "" && e.phase == "done" {
				m.note("%s", e.result)
			}
			m.completed = slices.Delete(m.completed, i, i+1)
			m.elements = slices.DeleteFunc(m.elements, func(o *keyed) bool { return o == e })
		case wall == 0:
			m.note("|%d", m.elements[0].n)
			m.elements = m.elements[1:]
		default:
			return
		}
	}
}

// items are what a checkpoint has (law C1).
func (m *keyModel) items() string {
	text := []string{}
	for _, e := range m.elements {
		switch {
		case e.phase == "control":
			text = append(text, fmt.Sprintf("|%d", e.n))
		case e.phase == "done" && e.result != "":
			text = append(text, fmt.Sprintf("%s=[%s]", e.name, e.result))
		case e.phase == "ended" || e.phase == "done":
		case e.phase == "backoff":
			text = append(text, fmt.Sprintf("%s+%v", e.name, e.due-m.now))
		default:
			text = append(text, e.name)
		}
	}
	return strings.Join(text, " ")
}

// restored is the model after a restart from a checkpoint: elements wait behind those before them, back-off included.
func (m *keyModel) restored() *keyModel {
	again := *m
	again.now, again.outlived, again.finishing = 0, map[string]string{}, false
	again.elements, again.completed, again.failing, again.offered, again.tasks = nil, nil, nil, nil, nil
	for _, old := range m.elements {
		if old.phase == "ended" || old.phase == "done" && old.result == "" {
			continue
		}
		e := again.put(old.name, old.n)
		e.n = old.n
		switch {
		case old.phase == "done":
			again.settle(e, old.result)
		case old.phase == "backoff" && old.due > m.now:
			again.enter(e, "backoff", old.due-m.now)
		default:
			again.startNew(e)
		}
	}
	return &again
}

// keyRig is an core with the order of the model. Its sink takes nothing while refuse is set.
func keyRig(t require.TestingT, m *keyModel, refuse *error) *rig {
	strategy := strategies.FixedDelay[string](modelRetries, modelDelay).RetryIfException(predicates.HasException)
	r := newRig(t, strategy, func(c *setup) {
		byFirstLetter(c)
		c.Timeout, c.AttemptTimeout, c.MaxCalls, c.MaxWaiting = modelTimeout, m.attemptTimeout, m.permits, m.most
		c.Queue = queue.NewUnordered[*Slot[string, string]](m.slots)
		c.Limit = 1_000_000 * time.Hour
		if m.handsOver {
			c.OnFailure = toSink
			c.Sink = func(context.Context, Report[string]) error { return *refuse }
		}
		if m.handler {
			c.Handle = defaultOfEven
		}
	})
	if m.blocking {
		r.answer = occupy
	}
	return r
}

// The core does what law K1 says, whatever comes in which order, and everything else that it promises: A1 to A5, Q1, Q2, T1,
// C1. In the end all have ended, so none has starved, and no lane is left.
func TestKeyOrderFollowsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &keyModel{
			slots: rapid.IntRange(1, 7).Draw(t, "slots"), permits: rapid.IntRange(1, 3).Draw(t, "permits"),
			most: rapid.IntRange(0, 2).Draw(t, "most"), outlived: map[string]string{},
			attemptTimeout: rapid.SampledFrom([]time.Duration{0, 7 * time.Second}).Draw(t, "attempt timeout"),
			handsOver:      rapid.Bool().Draw(t, "hand over"), handler: rapid.Bool().Draw(t, "handler"), blocking: rapid.Bool().Draw(t, "blocking"),
		}
		var refuse error
		r := keyRig(t, m, &refuse)
		accepted := 0
		check := func(t *rapid.T) {
			r.emit()
			m.emit()
			require.Equal(t, strings.Join(m.history, " "), strings.Join(r.history, " "))
			require.Equal(t, len(m.elements), r.Len())
			require.Equal(t, m.used(), r.Running())
			require.Len(t, r.tasks, len(m.tasks))
			checkLanes(t, r)
			r.balance()
			c, _ := r.Counts()
			require.EqualValues(t, len(m.in("behind")), c.WaitingForKey)
			require.EqualValues(t, len(m.in("backoff", "ready", "parked")), c.WaitingForRetry)
		}
		t.Repeat(map[string]func(*rapid.T){
			"accept": func(t *rapid.T) {
				if require.Equal(t, m.hasRoom(), r.HasRoom()); !r.HasRoom() { // law Q2
					t.Skip()
				}
				accepted++
				if rapid.IntRange(0, 5).Draw(t, "kind") == 0 {
					r.AcceptControl(mark(accepted))
					m.put("", accepted)
					return
				}
				name := fmt.Sprintf("%c%d", 'a'+rapid.IntRange(0, 2).Draw(t, "key"), accepted)
				r.Accept(name, call.Message{})
				e := m.put(name, accepted)
				m.startNew(e)
			},
			"complete": func(t *rapid.T) {
				running := m.in("running")
				if len(running) == 0 {
					t.Skip()
				}
				e := rapid.SampledFrom(running).Draw(t, "call")
				name := fmt.Sprintf("%s#%d", e.name, e.attempts)
				a := r.calls[name]
				switch how := rapid.IntRange(0, 4).Draw(t, "how"); {
				case how < 2:
					a.Complete(name)
					defer m.outcome(e, name)
				case how == 2:
					a.Complete()
					defer m.outcome(e, "")
				default:
					a.CompleteExceptionally(errBroken)
					defer m.outcome(e, "error")
				}
				switch {
				case !m.blocking:
				case rapid.Bool().Draw(t, "runs on"): // a wrapper, which has more to do
					m.outlived[name] = e.key
				default:
					a.Returned()
				}
			},
			"return": func(t *rapid.T) {
				if len(m.outlived) == 0 {
					t.Skip()
				}
				calls := []string{}
				for c := range m.outlived {
					calls = append(calls, c)
				}
				slices.Sort(calls)
				name := rapid.SampledFrom(calls).Draw(t, "call")
				key := m.outlived[name]
				delete(m.outlived, name)
				m.release(key)
				r.calls[name].Returned()
			},
			"work": func(t *rapid.T) {
				if refuse = nil; rapid.IntRange(0, 3).Draw(t, "sink") == 0 {
					refuse = errOver
				}
				r.work()
				m.work(refuse != nil)
			},
			"wait": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second
				r.clock.at = r.clock.at.Add(d)
				m.now += d
			},
			"end retries": func(*rapid.T) { // law A5
				r.EndRetries()
				m.finishing = true
				for _, e := range m.in("backoff") {
					m.ready(e)
				}
			},
			"restart": func(t *rapid.T) {
				if m.most > 0 || rapid.IntRange(0, 2).Draw(t, "really") > 0 {
					t.Skip()
				}
				items := r.Items(nil, true)
				m = m.restored()
				r.stop(nil)
				again := keyRig(t, m, &refuse)
				again.history = r.history
				r = again
				for _, it := range items {
					r.Restore(it, 0)
				}
			},
			"": func(t *rapid.T) {
				r.Turn()
				m.turn()
				require.Equal(t, m.items(), strings.TrimSpace(itemNames(r)))
				check(t)
			},
		})
		for n := 0; r.Len() > 0 || r.Running() > 0; n++ { // all end
			require.Less(t, n, 1000)
			for _, a := range r.calls { // those that block for ever return now
				if m.blocking && !a.HasReturned() {
					a.Returned()
				}
			}
			r.pass(time.Minute)
			refuse = nil
			r.work()
			r.idle()
		}
		require.Empty(t, r.setup.Keys.(*keys[string, string, string]).lanes)
		require.Equal(t, r.Queue.Cap(), r.Room())
		r.end()
	})
}

// checkLanes checks law K1 on the core itself.
func checkLanes(t require.TestingT, r *rig) {
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
	a.Occupy()
	return nil
}
