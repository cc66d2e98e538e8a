package modeltest

import (
	"fmt"
	"slices"
	"time"
)

// ---- Keys (law K1): one element of a key at a time is called or waits for a retry, and
// they end in input order

// line returns the elements of a key that have not ended.
func (m *Model) line(key int) (line []*Element) {
	for _, e := range m.Queue {
		if e.inLine && e.Key == key {
			line = append(line, e)
		}
	}
	return line
}

// mayCall reports whether e is the first of its key, and the key has no running call.
func (m *Model) mayCall(e *Element) bool {
	if !m.KeyOrder {
		return true
	}
	if m.line(e.Key)[0] != e {
		return false
	}
	return !m.Blocking || !slices.ContainsFunc(m.Calls, func(c *Call) bool {
		return c.RunsOn() && c.Element.Key == e.Key
	})
}

// crowded reports whether a key has reached MaxWaiting.
func (m *Model) crowded() bool {
	return m.MaxWaiting > 0 && slices.ContainsFunc(m.Queue, func(e *Element) bool { return e.inLine && len(m.line(e.Key)) > m.MaxWaiting })
}

// isFirst reports whether the end of e takes effect now: later ends wait until e is the
// first of its key.
func (m *Model) isFirst(e *Element) bool {
	e.early = e.inLine && m.line(e.Key)[0] != e
	return !e.early
}

// leaveLine removes e, which has ended, and lets the next element of its key start.
func (m *Model) leaveLine(e *Element) {
	if !e.inLine {
		return
	}
	line := m.line(e.Key)
	e.inLine = false
	if line[0] != e {
		return
	}
	for _, next := range line[1:] {
		if !next.early {
			break
		}
		m.enter(next, next.phase)
		next.early = false
		if next.phase == Failing {
			return
		}
		next.inLine = false
	}
	m.mayStart(e.Key)
}

func (m *Model) mayStart(key int) {
	line := m.line(key)
	if len(line) == 0 || !m.mayCall(line[0]) {
		return
	}
	switch line[0].phase {
	case Behind:
		m.enter(line[0], Fresh)
	case Ready:
		m.enter(line[0], Ready)
	default: // running or done
	}
}

// ---- Permits that are shared with other operators, and their pace (laws B1 to B3)

// Shared has permits that are shared with other operators.
type Shared struct {
	Some          bool // there are shared permits
	Limit, Others int  // of permits; permits that other operators hold
	Interval      time.Duration
	next          time.Duration // when the next attempt may start
}

func (s *Shared) free(m *Model) bool {
	return !s.Some || m.running+s.Others < s.Limit && m.Now >= s.next
}

// ---- Batches: each holds one permit until it returns

// goes reports whether a batch starts: it is full, cannot fill, or has waited long
// enough.
func (m *Model) goes(withWaits bool) bool {
	waiting := m.startable()
	switch {
	case len(waiting) == 0:
		return false
	case len(waiting) >= m.BatchSize || m.NoneFollow || len(m.Queue) == m.Capacity && m.head() < 0:
		return true
	case !withWaits:
		return false
	}
	fresh := slices.IndexFunc(waiting, func(e *Element) bool { return e.phase == Fresh })
	return fresh >= 0 && m.Now >= waiting[fresh].accepted+m.BatchWait || fresh != 0 && m.Now >= m.readySince+m.BatchWait
}

func (m *Model) startBatch() bool {
	waiting := m.startable()
	if len(waiting) == 0 || !m.takePermit() {
		return false
	}
	members := waiting[:min(len(waiting), m.BatchSize)]
	m.Batches = append(m.Batches, members)
	for _, e := range members {
		m.start(e)
	}
	return true
}

// StartAtOnce starts batches after an element was accepted.
func (m *Model) StartAtOnce() {
	for m.goes(false) && m.startBatch() {
	}
}

// StartFull starts a full batch at the beginning of a step, and reports whether it did. A
// due timer goes first.
func (m *Model) StartFull() bool {
	return len(m.startable()) >= m.BatchSize && !slices.ContainsFunc(m.Queue, m.isDue) && m.startBatch()
}

// ReturnBatch returns the call of a batch, with outcomes for the members that are left.
func (m *Model) ReturnBatch(i int, outcome func(c *Call) Outcome) {
	members := m.Batches[i]
	m.Batches = slices.Delete(m.Batches, i, i+1)
	m.running--
	for _, e := range members {
		e.call.returned = true
		if !e.call.Ended {
			m.Complete(e.call, outcome(e.call))
		}
	}
}

// ---- The failure sink

// offerOne offers the oldest failure to the sink.
func (m *Model) offerOne() bool {
	if m.offered == nil {
		for _, e := range m.Queue {
			if e.phase == Failing && !e.early && e.at == Never && (m.offered == nil || e.order < m.offered.order) {
				m.offered = e
			}
		}
	}
	if m.offered == nil || !m.SinkOpen {
		return false
	}
	m.Take()
	return true
}

// Offered returns the offered element, or nil.
func (m *Model) Offered() *Element { return m.offered }

// Take makes the sink take the offered element.
func (m *Model) Take() {
	e := m.offered
	m.offered = nil
	m.stats.HandedOver++
	m.handedOver(e)
	m.enter(e, Done)
	m.leaveLine(e)
}

// Refuse makes the sink refuse it, which doubles its wait.
func (m *Model) Refuse() {
	e := m.offered
	m.offered = nil
	e.wait = min(max(m.FirstOffer, 2*e.wait), m.LastOffer)
	m.enter(e, Failing)
	e.at = m.Now + e.wait
	m.note(Refused, e.Name, "+"+e.wait.String())
}

func (m *Model) handedOver(e *Element) {
	m.note(HandedOver, e.Name, Failure(e.err, e.attempts, e.first, e.last))
}

// Failure returns the text of a failure.
func Failure(err string, attempts int, first, last time.Duration) string {
	return fmt.Sprintf(": %s attempts=%d first=%v last=%v", err, attempts, first, last)
}

// ---- Checkpoints (law C1): the elements that were accepted and are not settled, in
// input order

// Item is an element in a checkpoint.
type Item struct {
	Input

	Results []string // of an element that is done
	Made    int      // without a running attempt
	Due     time.Duration
	Wait    time.Duration // rest of its back-off, which ends at Due
}

func (it Item) String() string {
	switch {
	case len(it.Results) > 0:
		return fmt.Sprintf("%s=%v", it.Name, it.Results)
	case it.Wait > 0:
		return fmt.Sprintf("%s+%v", it.Name, it.Wait)
	}
	return it.Name
}

// Items returns the elements of a checkpoint taken now.
func (m *Model) Items() (items []Item) {
	for _, e := range m.Queue {
		it := Item{Input: e.Input, Made: e.attempts}
		switch e.phase {
		case Done:
			it.Results = slices.Clone(e.results)
			if len(it.Results) == 0 {
				continue // all its results were emitted
			}
		case Backoff:
			it.Due, it.Wait = e.at, e.at-m.Now
		case Running, Handling, Failing:
			it.Made = max(0, it.Made-1)
		default: // unchanged
		}
		items = append(items, it)
	}
	for _, in := range m.Source { // read past the capacity
		items = append(items, Item{Input: in})
	}
	return items
}

// Barrier takes a checkpoint. The barrier overtakes the queue.
func (m *Model) Barrier(name string) []Item {
	m.note(Emitted, name, "")
	m.ahead = len(m.Source)
	return m.Items()
}

// Restore returns a model restarted from a checkpoint. Attempts and total times start
// again; waits continue (law C3).
func (m *Model) Restore(items []Item) *Model {
	again := New(m.Config)
	again.Now = m.Now
	for _, it := range items {
		if again.ahead > 0 || !again.HasSlot() {
			again.Send(it.Input)
			again.ahead++
			continue
		}
		e := again.Put(it.Input)
		switch {
		case len(it.Results) > 0:
			e.attempts = it.Made
			again.finish(e, Outcome{Results: it.Results})
		case it.Due > m.Now:
			again.enter(e, Backoff)
			again.stats.WaitingForRetry++
			e.at = it.Due
			if m.ReserveDivisor > 0 && it.Wait <= m.Timeout { // reserve time for an attempt
				e.extra = max(0, it.Due-m.Now+m.Timeout/time.Duration(m.ReserveDivisor)-m.Timeout)
			}
		}
	}
	return again
}
