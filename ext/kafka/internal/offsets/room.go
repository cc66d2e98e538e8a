package offsets

import "slices"

// Room reports whether metadata of at most limit characters still holds all settled
// spans, without delays, once an arrived offset is settled too.
func (p *Progress) Room(limit int, offset int64) bool {
	room := bytesIn(limit) - reserved
	if p.literals() <= int64(room) {
		return true
	}
	q := &Progress{low: p.low, next: p.next, done: slices.Clone(p.done)}
	q.mark(Span{offset, offset + 1})
	return len(q.spans(room+1)) <= room
}
