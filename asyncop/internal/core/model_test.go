package core

import (
	"cmp"
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

// model knows what an core does, by the laws: errors are retried up to modelRetries times after modelDelay, within
// modelTimeout, and elements that fail are dropped.
type model struct {
	ordered, finishing bool
	slots, permits     int
	shared, others     int           // permits that are shared, and those that others have
	interval, paced    time.Duration // between attempts, and when the next may start
	now                time.Duration
	armed, readied     int // back-offs that began, and ended, so far
	elements           []*modelled
	completed          []*modelled // unordered: in this order
	history            []string
}

type modelled struct {
	name           string // "" for a control element, which is n
	n              int
	phase          string
	attempts       int
	armed, readied int // as which of all
	accepted, due  time.Duration
}

const (
	modelRetries = 2
	modelDelay   = 10 * time.Second
	modelTimeout = 35 * time.Second
)

func (m *model) note(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) in(phase string) (in []*modelled) {
	for _, e := range m.elements {
		if e.phase == phase {
			in = append(in, e)
		}
	}
	return in
}

func (m *model) accept(name string, n int) {
	e := &modelled{name: name, n: n, phase: "fresh", accepted: m.now}
	m.elements = append(m.elements, e)
	if name == "" {
		e.phase = "control"
	} else if len(m.in("ready")) == 0 && len(m.in("fresh")) == 1 {
		m.start()
	}
}

func (m *model) ready(e *modelled) {
	m.readied++
	e.phase, e.readied = "ready", m.readied
}

// start starts what waits for a permit: retries first, the oldest first, of equal ones the first that was due.
func (m *model) start() {
	for running := len(m.in("running")); running < m.permits && running+m.others < m.shared && m.now >= m.paced; running++ {
		due := slices.SortedFunc(slices.Values(m.in("ready")), func(a, b *modelled) int {
			return cmp.Or(cmp.Compare(a.accepted, b.accepted), cmp.Compare(a.readied, b.readied))
		})
		waiting := append(due, m.in("fresh")...)
		if len(waiting) == 0 {
			return
		}
		e := waiting[0]
		e.phase, e.attempts = "running", e.attempts+1
		if m.interval > 0 {
			m.paced = m.now + m.interval
		}
		m.note("(%s#%d", e.name, e.attempts)
	}
}

// outcome is that of a running call.
func (m *model) outcome(e *modelled, ok bool) {
	switch {
	case ok:
		e.phase = "done"
		m.completed = append(m.completed, e)
	case e.attempts > modelRetries || m.finishing:
		m.drop(e)
	default: // law A5: one that cannot start before the deadline waits for that
		m.armed++
		e.phase, e.armed, e.due = "backoff", m.armed, min(m.now+modelDelay, e.accepted+modelTimeout)
	}
}

func (m *model) drop(e *modelled) {
	e.phase = "ended"
	m.completed = append(m.completed, e)
	m.note("!%s", e.name)
}

// turn lets what is due happen: deadlines first (law A5), then retries in the order in which they are due (law T1).
func (m *model) turn() {
	for _, e := range m.elements {
		if slices.Contains([]string{"fresh", "running", "backoff", "ready"}, e.phase) && e.accepted+modelTimeout <= m.now {
			m.drop(e)
		}
	}
	due := slices.SortedFunc(slices.Values(m.in("backoff")), func(a, b *modelled) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.armed, b.armed))
	})
	for _, e := range due {
		if e.due <= m.now {
			m.ready(e)
		}
	}
	m.start()
}

// emit lets leave what may (law Q1).
func (m *model) emit() {
	for len(m.elements) > 0 {
		i := 0
		if !m.ordered {
			wall := slices.IndexFunc(m.elements, func(e *modelled) bool { return e.phase == "control" })
			if wall < 0 {
				wall = len(m.elements)
			}
			first := slices.IndexFunc(m.completed, func(e *modelled) bool { return slices.Contains(m.elements[:wall], e) })
			if first >= 0 {
				i = slices.Index(m.elements, m.completed[first])
			}
		}
		e := m.elements[i]
		switch e.phase {
		case "done":
			m.note("%s#%d", e.name, e.attempts)
		case "control":
			m.note("|%d", e.n)
		case "ended":
		default:
			return
		}
		m.elements = slices.Delete(m.elements, i, i+1)
		m.completed = slices.DeleteFunc(m.completed, func(c *modelled) bool { return c == e })
	}
}

// items are what a checkpoint has (law C1).
func (m *model) items() string {
	text := []string{}
	for _, e := range m.elements {
		switch e.phase {
		case "control":
			text = append(text, fmt.Sprintf("|%d", e.n))
		case "done":
			text = append(text, fmt.Sprintf("%s=[%s#%d]", e.name, e.name, e.attempts))
		case "ended":
		case "backoff":
			text = append(text, fmt.Sprintf("%s+%v", e.name, e.due-m.now))
		default:
			text = append(text, e.name)
		}
	}
	return strings.Join(text, " ")
}

// The core does what the laws say, whatever comes in which order: A1 to A5, Q1, Q2, T1, C1.
func TestEngineFollowsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			ordered: rapid.Bool().Draw(t, "ordered"), slots: rapid.IntRange(1, 5).Draw(t, "slots"), permits: rapid.IntRange(1, 3).Draw(t, "permits"),
			shared: rapid.IntRange(1, 3).Draw(t, "shared permits"), interval: time.Duration(rapid.IntRange(0, 4).Draw(t, "interval")) * time.Second,
		}
		permits := newHouse(m.shared)
		strategy := strategies.FixedDelay[string](modelRetries, modelDelay).RetryIfException(predicates.HasException)
		r := newRig(t, strategy, func(c *setup) {
			c.Timeout, c.MaxCalls = modelTimeout, m.permits
			c.Queue = queue.NewUnordered[*Slot[string, string]](m.slots)
			if m.ordered {
				c.Queue = queue.NewOrdered[*Slot[string, string]](m.slots)
			}
		})
		r.share(permits)
		permits.interval, permits.next = m.interval, r.clock.at
		accepted, late := 0, int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"accept": func(t *rapid.T) {
				if require.Equal(t, len(m.elements) < m.slots, r.HasRoom()); !r.HasRoom() { // law Q2
					t.Skip()
				}
				accepted++
				if rapid.IntRange(0, 4).Draw(t, "kind") == 0 {
					r.AcceptControl(mark(accepted))
					m.accept("", accepted)
				} else {
					name := fmt.Sprintf("e%d", accepted)
					r.Accept(name, call.Message{})
					m.accept(name, 0)
				}
			},
			"complete": func(t *rapid.T) {
				running := m.in("running")
				if len(running) == 0 {
					t.Skip()
				}
				e := rapid.SampledFrom(running).Draw(t, "call")
				name, ok := fmt.Sprintf("%s#%d", e.name, e.attempts), rapid.Bool().Draw(t, "ok")
				if ok {
					r.complete(name)
				} else {
					r.fail(name)
				}
				m.outcome(e, ok)
			},
			"complete late": func(t *rapid.T) { // law A2
				e := rapid.IntRange(1, accepted+1).Draw(t, "element")
				for n := 1; n <= modelRetries; n++ {
					if _, again := r.calls[fmt.Sprintf("e%d#%d", e, n+1)]; again {
						r.complete(fmt.Sprintf("e%d#%d", e, n))
						late++
					}
				}
				require.GreaterOrEqual(t, r.Host.Late(), late)
			},
			"wait": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second
				r.clock.at = r.clock.at.Add(d)
				m.now += d
			},
			"others take": func(t *rapid.T) {
				if permits.Take() {
					require.Less(t, len(m.in("running"))+m.others, m.shared)
					m.others++
				}
			},
			"others give back": func(t *rapid.T) {
				if m.others == 0 {
					t.Skip()
				}
				m.others--
				permits.Release()
			},
			"limit": func(t *rapid.T) {
				m.shared = rapid.IntRange(0, 3).Draw(t, "limit")
				permits.limit = m.shared
			},
			"end retries": func(*rapid.T) { // law A5
				r.EndRetries()
				m.finishing = true
				for _, e := range m.in("backoff") {
					m.ready(e)
				}
			},
			"": func(t *rapid.T) {
				r.Turn()
				m.turn()
				require.Equal(t, m.items(), strings.TrimSpace(itemNames(r)))
				r.emit()
				m.emit()
				require.Equal(t, strings.Join(m.history, " "), strings.Join(r.history, " "))
				require.Equal(t, len(m.elements), r.Len())
				require.Equal(t, len(m.in("running")), r.Running())
				require.Equal(t, len(m.in("running"))+m.others, permits.Used())
				r.balance()
			},
		})
		r.pass(time.Hour)
		r.idle()
		r.end()
		require.Equal(t, m.others, permits.Used())
	})
}

func itemNames(r *rig) string {
	if items := r.Items(nil, true); len(items) > 0 {
		return names(items)
	}
	return ""
}
