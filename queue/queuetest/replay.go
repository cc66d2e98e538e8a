package queuetest

import (
	"strconv"
	"testing"

	"github.com/weirflow/weir/queue"
)

// Replay runs a schedule decoded from any bytes and compares the queue with the model
// after every operation. Schedules include misuse: puts into a full queue, completions of
// entries that are not pending, pops without a head. The first byte sets the capacity.
// The upper three bits of each other byte are an operation:
//
//	0 1 2  put a record        3  put a control element
//	4 5    complete the k-th pending entry, k in the lower bits; without pending entries,
//	       the k-th complete entry, which panics
//	6      complete the k-th complete entry, which panics; without complete entries,
//	       the k-th pending entry
//	7      pop, 1 to 4 times
func Replay(tb testing.TB, kind Kind, newQueue func(capacity int) queue.Queue[string], schedule []byte) {
	tb.Helper()
	if len(schedule) == 0 {
		return
	}
	p := newPair(tb, kind, newQueue, 1+int(schedule[0]%24))
	for n, b := range schedule[1:] {
		op, k := b>>5, int(b&31)
		switch op {
		case 0, 1, 2:
			p.put("R" + strconv.Itoa(n))
		case 3:
			p.put("W" + strconv.Itoa(n))
		case 4, 5, 6:
			at := p.m.which(op != 6)
			if len(at) == 0 {
				at = p.m.which(op == 6)
			}
			if len(at) > 0 {
				p.complete(at[k%len(at)])
			}
		case 7:
			for range 1 + k%4 {
				p.pop()
			}
		}
	}
	p.drain()
	for at := p.m.which(true); len(at) > 0; at = p.m.which(true) {
		p.complete(at[len(at)/2])
		p.drain()
	}
	if p.q.Len() != 0 {
		p.fatalf("%d entries are stuck", p.q.Len())
	}
}
