package offsets

import "slices"

// Room says whether metadata of at most limit characters has all settled spans, without delays, also when an offset that has arrived is
// settled.
func (p *Progress) Room(limit int, offset int64) bool {
	q := &Progress{low: p.low, next: p.next, done: slices.Clone(p.done)}
	q.mark(Span{offset, offset + 1})
	n, at := 0, q.low
	for _, s := range q.done {
		n += size(s.From-at) + size(s.To-s.From)
		at = s.To
	}
	return n <= bytesIn(limit)-reserved
}
