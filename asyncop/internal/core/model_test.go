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

// model knows what a core does, by the laws. Elements are called a1, b2, …: the letter is the key, and the number grows. Errors are
// retried up to modelRetries times after modelDelay, within modelTimeout. Elements that fail are dropped, or handed over.
type model struct {
	ordered            bool
	keyed              bool // law K1
	slots, permits     int
	most               int           // elements that may wait for their key; 0: any number
	attemptTimeout     time.Duration // 0: none
	handsOver, handler bool          // handler: it has a result for even elements, and none for the others
	blocking           bool          // calls run on when their attempts have timed out
	finishing          bool

	isShared        bool
	shared, others  int           // permits that are shared, and those that others have
	interval, paced time.Duration // between attempts, and when the next may start

	now       time.Duration
	clicks    int
	elements  []*modelled
	completed []*modelled
	failing   []*modelled       // to be offered now
	offered   *modelled         // to the sink
	tasks     []*modelled       // for workers: handlers, and the offer
	outlived  map[string]string // calls that run on, and their keys
	history   []string
}

type modelled struct {
	name, key, result string // name "": a control element, which is n
	n, attempts       int
	phase             string
	inLane            bool
	order             int // when its timer was armed, or it became ready
	accepted, due     time.Duration
	wait              time.Duration // before its last offer
}

const (
	modelRetries = 2
	modelDelay   = 10 * time.Second
	modelTimeout = 35 * time.Second
)

func (m *model) note(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) enter(e *modelled, phase string, due time.Duration) {
	m.clicks++
	e.phase, e.order, e.due = phase, m.clicks, due
}

func (m *model) in(phases ...string) (in []*modelled) {
	for _, e := range m.elements {
		if slices.Contains(phases, e.phase) {
			in = append(in, e)
		}
	}
	return in
}

func (m *model) lane(key string) (lane []*modelled) {
	for _, e := range m.elements {
		if e.inLane && e.key == key {
			lane = append(lane, e)
		}
	}
	return lane
}

func (m *model) first(e *modelled) bool { return !m.keyed || m.lane(e.key)[0] == e }

func (m *model) kept(key string) bool {
	if !m.keyed {
		return false
	}
	for _, k := range m.outlived {
		if k == key {
			return true
		}
	}
	return false
}

// mayCall is the law: one at a time, in input order.
func (m *model) mayCall(e *modelled) bool { return m.first(e) && !m.kept(e.key) }

func (m *model) hasRoom() bool {
	for _, e := range m.elements {
		if e.inLane && m.most > 0 && len(m.lane(e.key)) > m.most {
			return false
		}
	}
	return len(m.elements) < m.slots
}

func (m *model) used() int { return len(m.in("running")) + len(m.outlived) }

// put accepts an element, or a control element without a name.
func (m *model) put(name string, n int) *modelled {
	e := &modelled{name: name, n: n, phase: "control", accepted: m.now}
	m.elements = append(m.elements, e)
	if name != "" {
		e.key, e.inLane, e.phase = name[:1], m.keyed, "fresh"
		if !m.mayCall(e) {
			e.phase = "behind"
		}
	}
	return e
}

func (m *model) startNew(e *modelled) {
	if len(m.in("ready")) == 0 && len(m.in("fresh")) == 1 && e.phase == "fresh" {
		m.start()
	}
}

// start starts what waits for a permit: retries first, the oldest first.
func (m *model) start() {
	for m.used() < m.permits && (!m.isShared || m.used()+m.others < m.shared && m.now >= m.paced) {
		waiting := slices.SortedFunc(slices.Values(m.in("ready")), func(a, b *modelled) int {
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
		if m.interval > 0 {
			m.paced = m.now + m.interval
		}
		m.note("(%s#%d", e.name, e.attempts)
	}
}

// ended takes e out of its lane: the next one has its turn.
func (m *model) ended(e *modelled) {
	wasFirst := m.first(e)
	e.inLane = false
	if !wasFirst || !m.keyed {
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

func (m *model) release(key string) {
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
func (m *model) settle(e *modelled, result string) {
	e.result = result
	m.enter(e, "done", 0)
	if m.first(e) {
		m.completed = append(m.completed, e)
		m.ended(e)
	}
}

func (m *model) fail(e *modelled) {
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
func (m *model) handOver() {
	if m.offered == nil && len(m.failing) > 0 {
		m.offered, m.failing = m.failing[0], m.failing[1:]
		m.tasks = append(m.tasks, m.offered)
	}
}

// work does what waits for workers: the sink takes what it is offered, or not.
func (m *model) work(refuse bool) {
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
func (m *model) outcome(e *modelled, result string) {
	switch {
	case result != "error":
		m.settle(e, result)
	case e.attempts > modelRetries || m.finishing:
		m.fail(e)
	default: // law A5: one that cannot start before the deadline waits for that
		m.enter(e, "backoff", min(m.now+modelDelay, e.accepted+modelTimeout))
	}
}

func (m *model) expire(e *modelled) {
	if m.blocking {
		m.outlived[fmt.Sprintf("%s#%d", e.name, e.attempts)] = e.key
	}
}

func (m *model) timeOut(e *modelled) {
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

func (m *model) ready(e *modelled) {
	m.enter(e, "ready", 0)
	if !m.mayCall(e) {
		e.phase = "parked"
	}
}

// turn lets what is due happen: deadlines first (law A5), then timers in the order in which they are due (law T1).
func (m *model) turn() {
	for _, e := range m.in("fresh", "behind", "running", "backoff", "ready", "parked") {
		if e.accepted+modelTimeout <= m.now {
			m.timeOut(e)
		}
	}
	due := slices.SortedFunc(slices.Values(m.in("backoff", "running", "failing")), func(a, b *modelled) int {
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
func (m *model) emit() {
	for i := m.head(); i >= 0; i = m.head() {
		switch e := m.elements[i]; {
		case e.name == "":
			m.note("|%d", e.n)
		case e.phase == "done" && e.result != "":
			m.note("%s", e.result)
		}
		m.completed = slices.DeleteFunc(m.completed, func(e *modelled) bool { return e == m.elements[i] })
		m.elements = slices.Delete(m.elements, i, i+1)
	}
}

// head returns which element leaves next, or -1: the oldest or, out of order, that before the first control element which was complete
// first.
func (m *model) head() int {
	segment := slices.IndexFunc(m.elements, func(e *modelled) bool { return e.name == "" })
	switch {
	case segment == 0:
		return 0
	case m.ordered:
		segment = min(1, len(m.elements))
	case segment < 0:
		segment = len(m.elements)
	}
	i := slices.IndexFunc(m.completed, func(e *modelled) bool { return slices.Contains(m.elements[:segment], e) })
	if i < 0 {
		return -1
	}
	return slices.Index(m.elements, m.completed[i])
}

// items are what a checkpoint has (law C1).
func (m *model) items() string {
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
func (m *model) restored() *model {
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

// modelRig is a core that does what the model does. Its sink takes nothing while refuse is set.
func modelRig(t require.TestingT, m *model, refuse *error) *rig {
	strategy := strategies.FixedDelay[string](modelRetries, modelDelay).RetryIfException(predicates.HasException)
	r := newRig(t, strategy, func(c *setup) {
		if m.keyed {
			byFirstLetter(c)
		}
		c.Timeout, c.AttemptTimeout, c.MaxCalls, c.MaxWaiting = modelTimeout, m.attemptTimeout, m.permits, m.most
		if c.Queue = queue.NewUnordered[*Slot[string, string]](m.slots); m.ordered {
			c.Queue = queue.NewOrdered[*Slot[string, string]](m.slots)
		}
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

// The core does what the laws say, whatever comes in which order: A1 to A5, Q1, Q2, T1, C1 and, if it is keyed, K1. In the end all
// have ended, so none has starved, and no lane is left.
func TestTheCoreFollowsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			slots: rapid.IntRange(1, 7).Draw(t, "slots"), permits: rapid.IntRange(1, 3).Draw(t, "permits"), keyed: rapid.Bool().Draw(t, "keyed"),
			isShared: rapid.Bool().Draw(t, "is shared"), outlived: map[string]string{},
			attemptTimeout: rapid.SampledFrom([]time.Duration{0, 7 * time.Second}).Draw(t, "attempt timeout"),
			handsOver:      rapid.Bool().Draw(t, "hand over"), handler: rapid.Bool().Draw(t, "handler"), blocking: rapid.Bool().Draw(t, "blocking"),
		}
		if m.keyed {
			m.most = rapid.IntRange(0, 2).Draw(t, "most")
		} else {
			m.ordered = rapid.Bool().Draw(t, "ordered")
		}
		var refuse error
		r := modelRig(t, m, &refuse)
		permits := newHouse(0)
		if m.isShared {
			m.shared, m.interval = rapid.IntRange(1, 3).Draw(t, "shared permits"), time.Duration(rapid.IntRange(0, 4).Draw(t, "interval"))*time.Second
			permits = newHouse(m.shared)
			permits.interval, permits.next = m.interval, r.clock.at
			r.share(permits)
		}
		accepted, late := 0, int64(0)
		check := func(t *rapid.T) {
			r.emit()
			m.emit()
			require.Equal(t, strings.Join(m.history, " "), strings.Join(r.history, " "))
			require.Equal(t, len(m.elements), r.Len())
			require.Equal(t, m.used(), r.Running())
			require.Len(t, r.tasks, len(m.tasks))
			if m.keyed {
				checkLanes(t, r)
			}
			if m.isShared {
				require.Equal(t, m.used()+m.others, permits.Used())
			}
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
			"complete late": func(t *rapid.T) { // law A2
				if m.blocking || accepted == 0 {
					t.Skip()
				}
				n, attempt := rapid.IntRange(1, accepted).Draw(t, "element"), rapid.IntRange(1, modelRetries).Draw(t, "attempt")
				for _, key := range "abc" {
					if _, again := r.calls[fmt.Sprintf("%c%d#%d", key, n, attempt+1)]; again {
						r.complete(fmt.Sprintf("%c%d#%d", key, n, attempt))
						late++
					}
				}
				require.GreaterOrEqual(t, r.Host.Late(), late)
			},
			"others": func(t *rapid.T) {
				switch what := rapid.IntRange(0, 2).Draw(t, "what"); {
				case !m.isShared:
					t.Skip()
				case what == 0 && permits.Take():
					require.Less(t, m.used()+m.others, m.shared)
					m.others++
				case what == 1 && m.others > 0:
					m.others--
					permits.Release()
				case what == 2:
					m.shared = rapid.IntRange(0, 3).Draw(t, "limit")
					permits.limit = m.shared
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
				if m.most > 0 || m.isShared || rapid.IntRange(0, 2).Draw(t, "really") > 0 {
					t.Skip()
				}
				items := r.Items(nil, true)
				m = m.restored()
				r.stop(nil)
				again := modelRig(t, m, &refuse)
				again.history = r.history
				r, late = again, 0
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
		if m.keyed {
			require.Empty(t, r.setup.Keys.(*keys[string, string, string]).lanes)
		}
		require.Equal(t, r.Queue.Cap(), r.Room())
		r.end()
		require.Equal(t, m.others, permits.Used())
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
	a.Occupy(false)
	return nil
}

func itemNames(r *rig) string {
	if items := r.Items(nil, true); len(items) > 0 {
		return names(items)
	}
	return ""
}
