package offsets

import (
	"encoding/binary"
	"math"

	"github.com/weirflow/weir/internal/varint"
)

// Spans are written as tokens for consecutive offsets above Low.
//
//	0bbbbbbb            seven offsets, a bit each, the lowest first: 1 is settled
//	1snnnnnn            8 + n offsets that are alike: settled, or not
//	1s111111 number     71 + number of them
//
// So disorder costs a bit for each offset, and a long span or gap some bytes.
const (
	inLiteral = 7
	isRun     = 0x80
	isSettled = 0x40
	runBits   = 0x3f
	minRun    = 8
	longRun   = minRun + runBits

	// perRecord is the most that an arriving record costs: a span of missing offsets
	// before it, and a literal.
	perRecord = 4
)

// literals returns the number of tokens for n offsets without a run.
func literals(n int64) int64 { return (n + inLiteral - 1) / inLiteral }

func runSize(n int64) int64 {
	if n < longRun {
		return 1
	}
	var b [binary.MaxVarintLen64]byte
	return 1 + int64(binary.PutUvarint(b[:], uint64(n-longRun)))
}

func (p *Progress) end() int64 {
	if n := len(p.done); n > 0 {
		return max(p.next, p.done[n-1].To)
	}
	return p.next
}

// literals is the maximum size of the tokens, in bytes, in whatever order the rest is
// settled.
func (p *Progress) literals() int64 { return literals(p.end() - p.low) }

// most is a second bound, which is lower if there are long spans: runs take fewer bytes.
// A run may need one more byte when it grows.
func (p *Progress) most() (n int64) {
	mixed, at := int64(0), p.low
	for _, s := range p.done {
		mixed += s.From - at
		if size := runSize(s.To-s.From) + 1; inLiteral*size < s.To-s.From {
			n += literals(mixed) + size
			mixed = 0
		} else {
			mixed += s.To - s.From
		}
		at = s.To
	}
	return n + literals(mixed+p.end()-at)
}

// spans returns the tokens that fit into a number of bytes.
func (p *Progress) spans(room int) (b []byte) {
	at, i := p.low, 0 // done[i] is the first span that ends after at
	for i < len(p.done) {
		settled := p.done[i].From <= at
		run := p.done[i].From - at
		if settled {
			run = p.done[i].To - at
		}
		n := len(b)
		if run > inLiteral*runSize(run) {
			b = appendRun(b, settled, run)
			at += run
		} else {
			var literal byte
			for bit, j := int64(0), i; bit < inLiteral && j < len(p.done); bit++ {
				if p.done[j].From <= at+bit {
					literal |= 1 << bit
				}
				if p.done[j].To == at+bit+1 {
					j++
				}
			}
			b = append(b, literal)
			at += min(inLiteral, math.MaxInt64-at)
		}
		if len(b) > room {
			return b[:n]
		}
		for i < len(p.done) && p.done[i].To <= at {
			i++
		}
	}
	return b
}

func appendRun(b []byte, settled bool, n int64) []byte {
	token := byte(isRun)
	if settled {
		token |= isSettled
	}
	if n < longRun {
		return append(b, token|byte(n-minRun))
	}
	return binary.AppendUvarint(append(b, token|runBits), uint64(n-longRun))
}

func readSpans(low int64, b []byte) ([]Span, error) {
	r := varint.Reader{Rest: b}
	var done []Span
	at := low
	take := func(n int64, settled bool) {
		if n > math.MaxInt64-at {
			if !settled && len(r.Rest) == 0 {
				return // the rest of the last literal
			}
			r.Fail(errRange)
			return
		}
		last := len(done) - 1
		switch {
		case !settled:
		case at == low:
			r.Fail(errLow)
		case last >= 0 && done[last].To == at:
			done[last].To += n
		default:
			done = append(done, Span{at, at + n})
		}
		at += n
	}
	for len(r.Rest) > 0 {
		token := r.Byte()
		if token&isRun == 0 {
			for bit := range inLiteral {
				take(1, token>>bit&1 == 1)
			}
			continue
		}
		n := uint64(token&runBits) + minRun
		if n == longRun {
			more := r.Uvarint()
			n += more
			if n < more || n > math.MaxInt64 {
				r.Fail(errRange)
			}
		}
		if r.Err == nil {
			take(int64(n), token&isSettled != 0)
		}
	}
	return done, r.Err
}
