package server

import (
	"cmp"
	"slices"
)

// evicted holds the STALE requests of a client whose answers were removed before the
// client declared them done. Consecutive numbers cost one span.
type evicted struct {
	steps map[string][]span // by step, ascending, with a gap between any two; nil if empty
	spans int               // of all steps
	names int64             // bytes of the names of the steps
}

func (e *evicted) cost() int64 {
	if e.spans == 0 {
		return 0
	}
	return evictedCost + spanCost*int64(e.spans) + stepCost*int64(len(e.steps)) + e.names
}

type span struct{ lo, hi int64 }

// maxSpans bounds the spans of a client. See add.
const maxSpans = 4096

func find(spans []span, seq int64) (i int, within bool) {
	i, _ = slices.BinarySearchFunc(spans, seq, func(s span, seq int64) int { return cmp.Compare(s.hi, seq) })
	return i, i < len(spans) && spans[i].lo <= seq
}

func (e *evicted) has(seq int64, step string) bool {
	if e.spans == 0 {
		return false
	}
	_, within := find(e.steps[step], seq)
	return within
}

// add returns the number below which everything becomes STALE, or 0. To bound memory it
// gives up the lower half of too many spans, with the unseen numbers between them (law
// X3).
func (e *evicted) add(seq int64, step string) (before int64) {
	if e.steps == nil {
		e.steps = map[string][]span{}
	}
	spans, known := e.steps[step]
	if !known {
		e.names += int64(len(step))
	}
	i, within := find(spans, seq)
	if within {
		return 0
	}
	touchesBelow := i > 0 && spans[i-1].hi+1 == seq
	touchesAbove := i < len(spans) && spans[i].lo-1 == seq
	switch {
	case touchesBelow && touchesAbove:
		spans[i-1].hi = spans[i].hi
		e.steps[step] = slices.Delete(spans, i, i+1)
		e.spans--
	case touchesBelow:
		spans[i-1].hi = seq
	case touchesAbove:
		spans[i].lo = seq
	default:
		e.steps[step] = slices.Insert(spans, i, span{seq, seq})
		e.spans++
	}
	if e.spans <= maxSpans {
		return 0
	}
	return e.half()
}

func (e *evicted) half() int64 {
	ends := make([]int64, 0, e.spans)
	for _, spans := range e.steps {
		for _, s := range spans {
			ends = append(ends, s.hi)
		}
	}
	slices.Sort(ends)
	return ends[len(ends)/2] + 1
}

// dropBelow forgets the numbers below before, which are STALE anyway.
func (e *evicted) dropBelow(before int64) {
	if e.spans == 0 {
		return
	}
	for step, spans := range e.steps {
		i, within := find(spans, before)
		if within {
			spans[i].lo = before
		}
		e.spans -= i
		if i == len(spans) {
			delete(e.steps, step)
			e.names -= int64(len(step))
		} else if i > 0 {
			e.steps[step] = append([]span(nil), spans[i:]...)
		}
	}
	if e.spans == 0 {
		e.steps = nil
	}
}
