package queuetest

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirflow/weir/queue"
)

// Run checks that newQueue returns queues of the given kind.
func Run(t *testing.T, kind Kind, newQueue func(capacity int) queue.Queue[string]) {
	t.Helper()
	s := suite{kind: kind, newQueue: newQueue}
	t.Run("empty", s.empty)
	t.Run("marbles", s.marbles)
	t.Run("every short input", s.everyShortInput)
	t.Run("capacity", s.capacity)
	t.Run("misuse", s.misuse)
	t.Run("head stays", s.headStays)
	t.Run("input order", s.inputOrder)
	t.Run("value", s.value)
	t.Run("reuse", s.reuse)
	t.Run("many", s.many)
	t.Run("random", s.random)
}

type suite struct {
	kind     Kind
	newQueue func(capacity int) queue.Queue[string]
}

func (s suite) pair(t *testing.T, capacity int) *pair {
	t.Helper()
	return newPair(t, s.kind, s.newQueue, capacity)
}

func (s suite) empty(t *testing.T) {
	p := s.pair(t, 3)
	p.pop() // must panic
	for range p.q.All() {
		t.Error("All of an empty queue yields an entry")
	}
	p.do("+R1 R1")
	p.drain()
	p.pop() // empty again
}

// step runs do, and then pops all entries that may leave, named in ordered or unordered.
type step struct{ do, ordered, unordered string }

// both returns a step after which the same entries leave both kinds.
func both(do, leaves string) step { return step{do, leaves, leaves} }

// Law Q1, case by case.
var marbles = []struct {
	name  string
	steps []step
}{
	{"the picture in queue/doc.go", []step{
		both("+R1 +R2 +R3 +W +R4", ""),
		{"R2", "", "R2"},
		{"R1", "R1 R2", "R1"},
		both("R4", ""),
		both("R3", "R3 W R4"),
	}},
	{"the segments in queue/doc.go, last first", []step{
		both("+R1 +R2 +W1 +R3 +R4 +W2 +R5", ""),
		both("R5 R4 R3", ""),
		{"R2", "", "R2"},
		{"R1", "R1 R2 W1 R3 R4 W2 R5", "R1 W1 R4 R3 W2 R5"},
	}},
	{"completed before anything leaves: completion order inside a segment", []step{
		{"+R1 +R2 +R3 R2 R3 R1", "R1 R2 R3", "R2 R3 R1"},
	}},
	{"no record overtakes a wall", []step{
		both("+R1 +W +R2", ""),
		both("R2", ""),
		both("R1", "R1 W R2"),
	}},
	{"no wall overtakes a record", []step{
		both("+R1 +R2 +W", ""),
		{"R2", "", "R2"},
		{"R1", "R1 R2 W", "R1 W"},
	}},
	{"a wall behind complete records that have not left", []step{
		both("+R1 R1 +W +R2 R2", "R1 W R2"),
	}},
	{"a wall leaves an empty queue at once", []step{
		both("+W", "W"),
		both("+R1 R1", "R1"),
		both("+W", "W"),
	}},
	{"adjacent walls", []step{
		both("+W1 +W2 +W3", "W1 W2 W3"),
		both("+R1 +W4 +W5 +R2 R2", ""),
		both("R1", "R1 W4 W5 R2"),
	}},
	{"walls first and last", []step{
		both("+W1 +R1 +W2", "W1"),
		both("R1", "R1 W2"),
	}},
	{"a record put behind a wall belongs to the next segment, however late", []step{
		both("+R1 +W1", ""),
		both("+R2 R2", ""),
		both("+W2 +R3 R3", ""),
		both("R1", "R1 W1 R2 W2 R3"),
	}},
	{"a segment continues after some records have left", []step{
		both("+R1 +R2 R1", "R1"),
		{"+R3 R3", "", "R3"},
		{"+W +R4 R4 R2", "R2 R3 W R4", "R2 W R4"},
	}},
	// From Flink's tests of its queues.
	{"Flink, ordered: only the head leaves", []step{
		both("+R1 +R2 +W +R3", ""),
		{"R2 R3", "", "R2"},
		{"R1", "R1 R2 W R3", "R1 W R3"},
	}},
	{"Flink, unordered: only records before the oldest watermark leave", []step{
		both("+R1 +R2 +W1 +R3 +R4 +W2 +R5 +R6 R3", ""),
		{"R2", "", "R2"},
		both("R6 R4", ""),
		{"R1", "R1 R2 W1 R3 R4 W2", "R1 W1 R3 R4 W2 R6"},
		{"R5", "R5 R6", "R5"},
	}},
	{"Flink: two watermarks alone", []step{both("+W1 +W2", "W1 W2"), both("", "")}},
	{"Flink: a watermark, then a record", []step{both("+W +R1", "W"), both("R1", "R1")}},
}

func (s suite) marbles(t *testing.T) {
	for _, test := range marbles {
		t.Run(test.name, func(t *testing.T) {
			p := s.pair(t, 8)
			for _, step := range test.steps {
				want := step.ordered
				if s.kind == Unordered {
					want = step.unordered
				}
				p.do(step.do)
				if got := strings.Join(p.drain(), " "); got != want {
					p.fatalf("after %q leave %q, want %q", step.do, got, want)
				}
			}
			if p.q.Len() != 0 {
				p.fatalf("%d entries are left", p.q.Len())
			}
		})
	}
}

// everyShortInput checks every sequence of up to five records and walls with every order
// of completion. Entries are popped after each completion, or all at the end.
func (s suite) everyShortInput(t *testing.T) {
	for n := 1; n <= 5; n++ {
		for walls := range 1 << n {
			var in, records []string
			for i := range n {
				if walls>>i&1 == 1 {
					in = append(in, "W"+strconv.Itoa(i))
				} else {
					in = append(in, "R"+strconv.Itoa(i))
					records = append(records, in[i])
				}
			}
			permute(records, 0, func(completed []string) {
				for _, asTheyCan := range []bool{true, false} {
					p := s.pair(t, n)
					for _, name := range in {
						p.put(name)
					}
					var out []string
					for _, name := range completed {
						p.complete(p.index(name))
						if asTheyCan {
							out = append(out, p.drain()...)
						}
					}
					out = append(out, p.drain()...)
					if want := s.lawQ1(in, completed); !slices.Equal(out, want) {
						p.fatalf("%v completed in the order %v leave as %v, want %v", in, completed, out, want)
					}
				}
			})
		}
	}
}

// lawQ1 returns the order in which the entries of in leave.
func (s suite) lawQ1(in, completed []string) []string {
	out := slices.Clone(in)
	if s.kind == Ordered {
		return out
	}
	from := 0
	for i := 0; i <= len(out); i++ {
		if i == len(out) || strings.HasPrefix(out[i], "W") {
			slices.SortFunc(out[from:i], func(a, b string) int {
				return slices.Index(completed, a) - slices.Index(completed, b)
			})
			from = i + 1
		}
	}
	return out
}

func permute(names []string, k int, f func([]string)) {
	if k >= len(names) {
		f(names)
		return
	}
	for i := k; i < len(names); i++ {
		names[k], names[i] = names[i], names[k]
		permute(names, k+1, f)
		names[k], names[i] = names[i], names[k]
	}
}

// Law Q2: every entry takes a slot until it has left.
func (s suite) capacity(t *testing.T) {
	for _, capacity := range []int{0, -1} {
		if !panics(func() { s.newQueue(capacity) }) {
			t.Errorf("a queue of capacity %d must panic", capacity)
		}
	}

	p := s.pair(t, 4)
	p.do("+R1 +R2 +W1 +R3")
	p.do("+R4 +W2")    // full: both panic
	p.do("R2 R3")      // complete entries hold their slots
	p.do("+R4 +W2 R1") // so these puts panic, too
	p.do("+R4 +W2")
	p.pop()
	p.do("+W2")     // takes the free slot
	p.do("+R4 +W3") // full again: both panic
	p.drain()
	if p.q.Len() != 0 {
		p.fatalf("%d entries are left", p.q.Len())
	}

	p = s.pair(t, 1)
	p.do("+R1 +R2 +W1 R1 +R2")
	p.pop()
	p.do("+W1 +R2 +W2")
	p.pop()
	p.do("+R3 R3")
	p.pop()
}

// An entry that is completed or popped twice would leave twice.
func (s suite) misuse(t *testing.T) {
	p := s.pair(t, 4)
	p.do("+R1 +R2 +W +R3")
	p.pop()    // no head: panics
	p.do("W")  // a control element is complete: panics
	p.do("R2") // fine
	p.do("R2") // twice: panics
	p.do("R3 R3 R1 R1")
	p.drain()
	p.pop() // panics

	p.do("+R4 R4")
	popped := p.q.Head()
	p.pop()
	if !panics(func() { p.q.Complete(popped) }) {
		p.fatalf("Complete of a popped entry must panic")
	}
	p.check()
}

// The head stays the head until it is popped: its owner may be emitting it. Law Q1: the
// results of an element are never split.
func (s suite) headStays(t *testing.T) {
	p := s.pair(t, 8)
	p.do("+R1 +R2 +R3 +W +R4 R2 R4")
	if s.kind == Ordered {
		p.do("R1")
	}
	head := p.q.Head()
	p.do("+R5 R5 R3 +W2 +R6 R6")
	if s.kind == Unordered {
		p.do("R1")
	}
	if p.q.Head() != head {
		p.fatalf("Head is %s, was %s", text(p.q.Head()), text(head))
	}
	p.drain()

	p = s.pair(t, 4) // a wall, too
	p.do("+W1")
	head = p.q.Head()
	p.do("+R1 R1 +W2 +R2 R2")
	if p.q.Head() != head {
		p.fatalf("Head is %s, was %s", text(p.q.Head()), text(head))
	}
}

// Both kinds keep the input order, which the pair checks after every operation.
func (s suite) inputOrder(t *testing.T) {
	p := s.pair(t, 8)
	p.do("+R1 +R2 +R3 +W +R4 R4 R3 R2")
	if got := strings.Join(walk(p.q, 8), " "); got != "R1 R2! R3! W! R4!" {
		p.fatalf("All is %q", got)
	}
	if got := walk(p.q, 2); len(got) != 2 {
		p.fatalf("a loop over All that breaks off after 2 entries saw %v", got)
	}
	p.drain()
	want := map[Kind]string{Ordered: "R1 R2! R3! W! R4!", Unordered: "R1 W! R4!"}
	if got := strings.Join(walk(p.q, 8), " "); got != want[s.kind] {
		p.fatalf("All is %q, want %q", got, want[s.kind])
	}
	all := p.q.All()
	for range 2 { // a sequence may be used again
		n := 0
		for range all {
			n++
		}
		if n != p.q.Len() {
			p.fatalf("All has %d entries of %d", n, p.q.Len())
		}
	}
}

// walk returns the names of up to limit entries in input order, complete ones with a
// mark.
func walk(q queue.Queue[string], limit int) (names []string) {
	for e := range q.All() {
		name := e.Value
		if e.Completed() {
			name += "!"
		}
		names = append(names, name)
		if len(names) == limit {
			break
		}
	}
	return names
}

// The value may change while it is in the queue.
func (s suite) value(t *testing.T) {
	p := s.pair(t, 2)
	p.do("+R1 +R2")
	p.q.First().Value, p.m.items[0].name = "changed", "changed"
	p.check()
	p.do("changed")
	if got := p.q.Head().Value; got != "changed" {
		p.fatalf("the value of the head is %q", got)
	}
	p.pop()
	p.do("R2")
	p.pop()
}

// A reused slot is empty. pop checks that a popped entry is empty.
func (s suite) reuse(t *testing.T) {
	p := s.pair(t, 4)
	for round := range 50 {
		n := strconv.Itoa(round)
		p.do("+R" + n + "a +R" + n + "b +W" + n + " +R" + n + "c")
		for _, suffix := range []string{"c", "b", "a"} {
			p.do("R" + n + suffix)
		}
		p.drain()
		// Use the slot of a record for a wall, and the reverse.
		p.do("+W" + n + " +R" + n)
		p.pop()
		e := p.q.PutZero()
		if e.Value != "" || e.Completed() || e.Next() != nil {
			p.fatalf("a new entry holds %q, completed %t, next %s", e.Value, e.Completed(), text(e.Next()))
		}
		p.m.items = append(p.m.items, item{entry: e})
		p.complete(1)
		p.do("R" + n)
		p.drain()
	}
}

// many checks that every operation takes constant time: a search would not end in
// reasonable time.
func (s suite) many(t *testing.T) {
	const n, block = 200_000, 8
	q := s.newQueue(n)
	var entries, leaving []*queue.Entry[string]
	for range n / block {
		var records, walls []*queue.Entry[string]
		for len(records)+len(walls) < block {
			if len(entries)%1000 == 999 { // the last of a block
				walls = append(walls, q.PutControl("W"))
				entries = append(entries, walls[0])
				continue
			}
			records = append(records, q.Put("R"))
			entries = append(entries, records[len(records)-1])
		}
		slices.Reverse(records)
		leaving = append(append(leaving, records...), walls...)
	}
	for _, e := range leaving {
		if !e.Completed() {
			q.Complete(e)
		}
	}
	if s.kind == Ordered {
		leaving = entries
	}
	for i, e := range leaving {
		if q.Head() != e {
			t.Fatalf("the entry that leaves as number %d is the wrong one", i)
		}
		q.Pop()
	}
	if q.Len() != 0 || q.Head() != nil || q.First() != nil {
		t.Fatalf("%d entries are left", q.Len())
	}
}

func (s suite) random(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		schedule := make([]byte, 1+r.IntN(200))
		for i := range schedule {
			schedule[i] = byte(r.Uint32())
		}
		Replay(t, s.kind, s.newQueue, schedule)
	}
}
