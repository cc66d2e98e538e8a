package offsets

import (
	"slices"
	"sort"
)

// Span is the offsets from From up to and without To.
type Span struct{ From, To int64 }

// Progress tracks which offsets of a partition have arrived, and which are settled.
// Offsets that never arrive (compacted, or markers of transactions) count as settled as
// soon as a later one arrives. It has one owner.
type Progress struct {
	low  int64  // all offsets below are settled
	next int64  // behind the last arrived record
	done []Span // settled, above low: in order, not adjacent
	open int    // arrived and not settled
}

// New returns the progress of a partition that is read from an offset on. done has
// settled spans above it, in order.
func New(low int64, done []Span) *Progress {
	p := &Progress{low: low, next: low}
	for _, s := range done {
		p.mark(s)
	}
	return p
}

// Low returns the position to commit: all before it is settled.
func (p *Progress) Low() int64 { return p.low }

// Next returns the offset behind the last arrived record.
func (p *Progress) Next() int64 { return p.next }

// Open returns how many records have arrived and are not settled.
func (p *Progress) Open() int { return p.open }

// Arrive notes a record. It returns false if the record is settled already. Offsets must
// grow.
func (p *Progress) Arrive(offset int64) bool {
	if offset > p.next {
		p.mark(Span{p.next, offset})
	}
	p.next = offset + 1
	if p.Settled(offset) {
		return false
	}
	p.open++
	return true
}

// Settle marks an arrived record as settled.
func (p *Progress) Settle(offset int64) {
	if offset >= p.next || p.Settled(offset) {
		return
	}
	p.open--
	p.mark(Span{offset, offset + 1})
}

// Unsettle takes a Settle back.
func (p *Progress) Unsettle(offset int64) {
	p.open++
	if offset < p.low {
		rest := Span{offset + 1, p.low}
		p.low = offset
		if rest.From < rest.To {
			p.done = slices.Insert(p.done, 0, rest)
		}
		return
	}
	i := p.after(offset) - 1
	before, behind := Span{p.done[i].From, offset}, Span{offset + 1, p.done[i].To}
	p.done = slices.Delete(p.done, i, i+1)
	for _, s := range []Span{behind, before} {
		if s.From < s.To {
			p.done = slices.Insert(p.done, i, s)
		}
	}
}

// Settled reports whether the message at offset is settled.
func (p *Progress) Settled(offset int64) bool {
	i := p.after(offset)
	return offset < p.low || i > 0 && offset < p.done[i-1].To
}

// after returns the index of the first span that begins after an offset.
func (p *Progress) after(offset int64) int {
	return sort.Search(len(p.done), func(i int) bool { return p.done[i].From > offset })
}

func (p *Progress) mark(s Span) {
	s.From = max(s.From, p.low)
	if s.From >= s.To {
		return
	}
	from := p.after(s.From)
	if from > 0 && p.done[from-1].To >= s.From {
		from--
		s.From = p.done[from].From
	}
	to := from
	for to < len(p.done) && p.done[to].From <= s.To {
		s.To = max(s.To, p.done[to].To)
		to++
	}
	p.done = slices.Replace(p.done, from, to, s)
	if p.done[0].From == p.low {
		p.low = p.done[0].To
		p.done = slices.Delete(p.done, 0, 1)
	}
}
