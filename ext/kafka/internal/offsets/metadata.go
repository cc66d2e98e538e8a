package offsets

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/weirflow/weir/internal/varint"
)

// Delay is a span whose unsettled offsets must not be delivered before a time, in
// milliseconds since 1970.
type Delay struct {
	Span
	Due int64
}

// prefix marks weir's metadata and its version. Brokers expect text, so the rest is
// base64.
const prefix = "w2."

var (
	// ErrNotOurs is returned by Decode for metadata of other programs.
	ErrNotOurs = errors.New("not written by weir")
	errEmpty   = errors.New("a span is empty")
	errLow     = errors.New("the first offset is settled")
	errRange   = errors.New("an offset is too large")
)

var encoding = base64.RawURLEncoding.Strict()

// reserved is the room, in bytes, for the number of tokens, and for delays merged into
// one.
const reserved = 48

func bytesIn(limit int) int { return (limit - len(prefix)) * 3 / 4 }

// Full reports whether metadata of at most limit characters could become too small if
// more records arrive and all open ones are settled in the worst order.
func (p *Progress) Full(limit, more int) bool {
	if p.open == 0 {
		return false // with no open record, a record can always arrive
	}
	room := int64(bytesIn(limit) - reserved - perRecord*more)
	return room < 0 || p.literals() > room && p.most() > room
}

// Encode returns metadata of at most limit characters: the settled spans above Low, and
// delays, which must be in order. If room is lacking, the last spans are left out, so
// their messages are redelivered, and delays become longer.
func (p *Progress) Encode(delays []Delay, limit int) string {
	if len(p.done) == 0 && len(delays) == 0 {
		return ""
	}
	spans := p.spans(bytesIn(limit) - reserved)
	b := append(binary.AppendUvarint(nil, uint64(len(spans))), spans...)
	for _, unit := range []int64{1, 100, 1000, 10_000, 60_000, 600_000, math.MaxInt64} {
		d := appendDelays(nil, p.low, rounded(delays, unit))
		if len(b)+len(d) <= bytesIn(limit) {
			b = append(b, d...)
			break
		}
	}
	return prefix + encoding.EncodeToString(b)
}

// rounded rounds the ends of delays up to multiples of a unit, never down (law D3).
// Neighbours with the same end are merged. The largest unit merges all.
func rounded(delays []Delay, unit int64) (out []Delay) {
	for _, d := range delays {
		if over := d.Due % unit; over > 0 && unit < math.MaxInt64 {
			d.Due += min(unit-over, math.MaxInt64-d.Due)
		}
		last := len(out) - 1
		switch {
		case last >= 0 && unit == math.MaxInt64:
			out[last].To, out[last].Due = d.To, max(out[last].Due, d.Due)
		case last >= 0 && out[last].To == d.From && out[last].Due == d.Due:
			out[last].To = d.To
		default:
			out = append(out, d)
		}
	}
	return out
}

func appendDelays(b []byte, at int64, delays []Delay) []byte {
	b = binary.AppendUvarint(b, uint64(len(delays)))
	due := int64(0)
	for _, d := range delays {
		b = binary.AppendUvarint(b, uint64(d.From-at))
		b = binary.AppendUvarint(b, uint64(d.To-d.From))
		b = binary.AppendVarint(b, d.Due-due)
		at, due = d.To, d.Due
	}
	return b
}

// Decode returns the content of metadata that Encode wrote for a position. The error
// matches ErrNotOurs, or names the damage.
func Decode(low int64, metadata string) (done []Span, delays []Delay, err error) {
	text, ours := strings.CutPrefix(metadata, prefix)
	if !ours {
		return nil, nil, ErrNotOurs
	}
	b, err := encoding.DecodeString(text)
	if err != nil {
		return nil, nil, err
	}
	if low < 0 {
		return nil, nil, errRange
	}
	r := varint.Reader{Rest: b}
	done, err = readSpans(low, r.Bytes())
	if err != nil {
		r.Fail(err)
	}
	at := low
	due := int64(0)
	for n := r.Uvarint(); n > 0 && r.Err == nil; n-- {
		d := Delay{Span: span(&r, &at)}
		step := r.Varint()
		due += step
		if due < 0 || step > 0 && due < step {
			r.Fail(errRange)
		}
		d.Due = due
		delays = append(delays, d)
	}
	if r.Err == nil && len(r.Rest) > 0 {
		r.Fail(errors.New("something follows"))
	}
	if r.Err != nil {
		return nil, nil, r.Err
	}
	return done, delays, nil
}

func span(r *varint.Reader, at *int64) (s Span) {
	gap, long := r.Uvarint(), r.Uvarint()
	room := uint64(math.MaxInt64 - *at)
	switch {
	case r.Err != nil:
	case long == 0:
		r.Fail(errEmpty)
	case gap > room || long > room-gap:
		r.Fail(errRange)
	default:
		s.From = *at + int64(gap)
		s.To = s.From + int64(long)
		*at = s.To
	}
	return s
}

// DueOf returns when an offset is due by delays that are in order; ok is false if it has
// no delay.
func DueOf(delays []Delay, offset int64) (due int64, ok bool) {
	i, _ := slices.BinarySearchFunc(delays, offset, func(d Delay, offset int64) int { return cmp.Compare(d.To, offset+1) })
	if i < len(delays) && delays[i].From <= offset {
		return delays[i].Due, true
	}
	return 0, false
}
