package queuetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirflow/weir/queue"
)

// pair runs every operation on the queue under test and on the model, and compares them.
type pair struct {
	t       testing.TB
	q       queue.Queue[string]
	m       model
	cap     int
	history []string
}

func newPair(tb testing.TB, kind Kind, newQueue func(capacity int) queue.Queue[string], capacity int) *pair {
	tb.Helper()
	p := &pair{t: tb, q: newQueue(capacity), m: model{kind: kind}, cap: capacity}
	p.check()
	return p
}

func (p *pair) fatalf(format string, args ...any) {
	p.t.Helper()
	p.t.Logf("%v queue of capacity %d after: %s", p.m.kind, p.cap, strings.Join(p.history, " "))
	p.t.Fatalf(format, args...)
}

// put puts a record, or a control element if its name begins with W. Law Q2: a full queue
// must panic.
func (p *pair) put(name string) {
	p.t.Helper()
	p.history = append(p.history, "+"+name)
	put, wall := p.q.Put, strings.HasPrefix(name, "W")
	if wall {
		put = p.q.PutControl
	} else if len(p.history)%2 == 0 {
		put = func(v string) *queue.Entry[string] {
			e := p.q.PutZero()
			e.Value = v
			return e
		}
	}
	if len(p.m.items) == p.cap {
		p.mustPanic(func() { put(name) })
		return
	}
	e := put(name)
	p.m.items = append(p.m.items, item{entry: e, name: name, wall: wall})
	p.check()
}

// complete completes the entry at index i, which must panic unless it is pending.
func (p *pair) complete(i int) {
	p.t.Helper()
	it := &p.m.items[i]
	p.history = append(p.history, it.name)
	if it.complete() {
		p.mustPanic(func() { p.q.Complete(it.entry) })
		return
	}
	p.q.Complete(it.entry)
	p.m.completions++
	it.done = p.m.completions
	p.check()
}

// pop removes the head and returns its name. Without a head Pop must panic, and pop
// returns "".
func (p *pair) pop() string {
	p.t.Helper()
	i := p.m.head()
	if i < 0 {
		p.history = append(p.history, "-")
		p.mustPanic(p.q.Pop)
		return ""
	}
	it := p.m.items[i]
	p.history = append(p.history, "-"+it.name)
	p.q.Pop()
	p.m.items = slices.Delete(p.m.items, i, i+1)
	if it.entry.Value != "" {
		p.fatalf("the popped entry still holds %q: the queue must release its value", it.entry.Value)
	}
	p.check()
	return it.name
}

func (p *pair) drain() (left []string) {
	p.t.Helper()
	for p.q.Head() != nil {
		left = append(left, p.pop())
	}
	return left
}

// do runs steps: +R1 puts a record, +W1 a control element, R1 completes the record.
func (p *pair) do(steps string) {
	p.t.Helper()
	for step := range strings.FieldsSeq(steps) {
		if name, ok := strings.CutPrefix(step, "+"); ok {
			p.put(name)
		} else {
			p.complete(p.index(step))
		}
	}
}

func (p *pair) index(name string) int {
	p.t.Helper()
	i := slices.IndexFunc(p.m.items, func(it item) bool { return it.name == name })
	if i < 0 {
		p.fatalf("no entry %s: the test is wrong", name)
	}
	return i
}

func (p *pair) mustPanic(misuse func()) {
	p.t.Helper()
	if !panics(misuse) {
		p.fatalf("the last step must panic")
	}
	p.check() // the queue must be unchanged
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return
}

func (p *pair) check() {
	p.t.Helper()
	var head, first *queue.Entry[string]
	if i := p.m.head(); i >= 0 {
		head = p.m.items[i].entry
	}
	if len(p.m.items) > 0 {
		first = p.m.items[0].entry
	}
	if got := p.q.Head(); got != head {
		p.fatalf("Head is %s, want %s", text(got), text(head))
	}
	if got := p.q.First(); got != first {
		p.fatalf("First is %s, want %s", text(got), text(first))
	}
	if got := p.q.Len(); got != len(p.m.items) {
		p.fatalf("Len is %d, want %d", got, len(p.m.items))
	}
	if got := p.q.Cap(); got != p.cap {
		p.fatalf("Cap is %d, want %d", got, p.cap)
	}
	p.checkInputOrder()
}

// checkInputOrder checks that All and Next return all entries in input order.
func (p *pair) checkInputOrder() {
	p.t.Helper()
	i, next := 0, p.q.First()
	for e := range p.q.All() {
		if i == len(p.m.items) || e != p.m.items[i].entry {
			p.fatalf("All has %s at %d, want %s", text(e), i, p.m.names())
		}
		if e != next {
			p.fatalf("Next leads to %s, All to %s", text(next), text(e))
		}
		it := p.m.items[i]
		if e.Value != it.name {
			p.fatalf("the value of %s is %q", it.name, e.Value)
		}
		if e.Completed() != it.complete() {
			p.fatalf("Completed of %s is %t", it.name, e.Completed())
		}
		i, next = i+1, e.Next()
	}
	if i != len(p.m.items) || next != nil {
		p.fatalf("All ends after %d entries and Next with %s, want %s", i, text(next), p.m.names())
	}
}

func (m *model) names() []string {
	names := make([]string, len(m.items))
	for i, it := range m.items {
		names[i] = it.name
	}
	return names
}

func text(e *queue.Entry[string]) string {
	if e == nil {
		return "nil"
	}
	return e.Value
}
