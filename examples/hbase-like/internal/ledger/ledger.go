package ledger

import (
	"fmt"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

type fate uint8

const (
	unknown fate = iota
	enriched
	givenUp
	abandoned // cut off with the pipeline
)

func (f fate) String() string {
	return [...]string{"unknown", "enriched", "given up", "abandoned"}[f]
}

type entry struct {
	line     int32
	retries  int32
	fate     fate
	restored bool          // fate comes from a checkpoint
	first    time.Duration // first call, since New; 0 if not called yet
	latency  time.Duration // from the first call to the end
}

// Ledger records the flights of one run.
type Ledger struct {
	ordered  bool
	airports map[string]flights.Airport
	opened   time.Time

	mu       sync.Mutex // guards the fields below
	entries  []entry    // by Flight.Seq
	last     int
	counts   [abandoned + 1]int
	lost     []Lost
	problems []string
}

// New opens a ledger. Enriched flights must carry these airports and, if ordered, come
// out in the order of reading.
func New(ordered bool, airports []flights.Airport) *Ledger {
	l := &Ledger{ordered: ordered, airports: make(map[string]flights.Airport, len(airports)), opened: time.Now(), last: -1}
	for _, a := range airports {
		l.airports[a.IATA] = a
	}
	return l
}

// Read records a flight before it enters the pipeline, in the order of Seq.
func (l *Ledger) Read(f flights.Flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Seq != len(l.entries) {
		l.problemLocked("flight %d was read as number %d", f.Seq, len(l.entries))
		return
	}
	l.entries = append(l.entries, entry{line: int32(f.Line)})
}

// Unread removes the last flight read: it did not enter the pipeline.
func (l *Ledger) Unread(f flights.Flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Seq == len(l.entries)-1 {
		l.entries = l.entries[:f.Seq]
	}
}

// Attempt records the begin of a flight's n-th attempt for an airport.
func (l *Ledger) Attempt(f flights.Flight, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Seq >= len(l.entries) {
		l.problemLocked("line %d: looked up, but never read", f.Line)
		return
	}
	e := &l.entries[f.Seq]
	l.takeUpLocked(e, f.Seq)
	if e.first == 0 {
		e.first = max(1, time.Since(l.opened))
	}
	if n > 1 {
		e.retries++
	}
}

// Enriched records that a flight came out of the pipeline.
func (l *Ledger) Enriched(f flights.Flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(f, enriched)
	if l.ordered && f.Seq <= l.last {
		l.problemLocked("line %d: came after a later one", f.Line)
	}
	l.last = max(l.last, f.Seq)
	for _, a := range []flights.Airport{f.Origin, f.Destination} {
		if a != l.airports[a.IATA] {
			l.problemLocked("line %d: airport %q carries wrong data", f.Line, a.IATA)
		}
	}
}

// GivenUp records that a flight was given up, and why.
func (l *Ledger) GivenUp(f flights.Flight, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.endLocked(f, givenUp) {
		l.lost = append(l.lost, Lost{Seq: f.Seq, Line: f.Line, Airport: f.Unresolved(), Why: why.Error()})
	}
}

// Abandoned records that a flight was cut off with the pipeline.
func (l *Ledger) Abandoned(f flights.Flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(f, abandoned)
}

// Progress returns the number of flights read, and of ended flights.
func (l *Ledger) Progress() (read, ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries), l.counts[enriched] + l.counts[givenUp] + l.counts[abandoned]
}

// endLocked returns true if the flight had not ended before.
func (l *Ledger) endLocked(f flights.Flight, end fate) bool {
	if f.Seq >= len(l.entries) {
		l.problemLocked("line %d: %s, but never read", f.Line, end)
		return false
	}
	e := &l.entries[f.Seq]
	l.takeUpLocked(e, f.Seq) // it may have timed out before its first attempt
	if e.fate != unknown {
		l.problemLocked("line %d: %s, and %s before", f.Line, end, e.fate)
		return false
	}
	e.fate = end
	l.counts[end]++
	if e.first > 0 {
		e.latency = time.Since(l.opened) - e.first
	}
	return true
}

func (l *Ledger) problemLocked(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}
