package drive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/varint"
	"github.com/weirflow/weir/queue"
)

// stateVersion is the first byte of a state. Earlier versions were never released.
const stateVersion = 3

// Snapshot is the decoded state of an operator.
type Snapshot[IN, OUT any] struct {
	Taken int64 // in Unix nanoseconds
	Final bool  // no element was called after it
	Items []core.Item[IN, OUT]
	Spent float64 // settled cost at a backend

	Observer []byte  // its state, or nil
	Numbers  []int64 // of the items; 0 for control elements; empty without an observer
}

func (s *Snapshot[IN, OUT]) hasCalls() bool {
	return slices.ContainsFunc(s.Items, func(it core.Item[IN, OUT]) bool { return it.Kind == core.Record && it.First != 0 })
}

// Marks of a state.
const (
	markFinal byte = 1 << iota
	markObserver
	markSpent
	unknownMarks
)

// StateCodec encodes the items of a checkpoint:
//
//	version  schema of inputs  schema of results  taken  marks [observer: its state] [cost]  count
//	{ kind  [record: [observer: number]  attempts  first  spent  wait [retry]  input] [completed: + n {result}] [control: time] }
//
// Fields in brackets are not always present. Times are Unix nanoseconds.
//
//	bytes                   version, marks, kind, retry
//	unsigned varints        count, attempts, n, cost
//	signed varints          taken, number, first, spent, wait
//	preceded by a length    the other fields
//
//	taken    the time of the checkpoint
//	cost     the bits of Snapshot.Spent; present if Spent is not 0
//	first    see core.Item.First
//	wait     the rest of a back-off at the time taken
//	retry    present if wait is not 0
type StateCodec[IN, OUT any] struct {
	Inputs  codec.Codec[IN]
	Results codec.Codec[OUT] // nil if results are not stored
}

// pieceSize is the approximate size of a piece of a state.
const pieceSize = 1 << 20

// Encode returns the state of a snapshot. The caller guards the codecs.
func (s StateCodec[IN, OUT]) Encode(snapshot Snapshot[IN, OUT]) (state participant.State, err error) {
	b := s.appendHead(nil, &snapshot)
	items := snapshot.Items
	b = binary.AppendUvarint(b, uint64(len(items)))
	var scratch []byte
	for i := range items {
		it := &items[i]
		if len(b) >= pieceSize {
			state = append(state, b)
			b = make([]byte, 0, cap(b))
		}
		b = append(b, byte(it.Kind))
		if it.Kind == core.Control {
			b = appendWatermark(b, it.Rest.(queue.Watermark))
			continue
		}
		if snapshot.Observer != nil {
			b = binary.AppendVarint(b, snapshot.Numbers[i])
		}
		b = binary.AppendUvarint(b, uint64(it.Attempts))
		b = binary.AppendVarint(b, it.First)
		b = binary.AppendVarint(b, int64(it.Spent))
		b = binary.AppendVarint(b, int64(it.Wait))
		if it.Wait != 0 {
			b = append(b, byte(it.Retry))
		}
		scratch, err = s.Inputs.Append(scratch[:0], it.In)
		if err != nil {
			return nil, fmt.Errorf("input %d of %d: %w", i+1, len(items), err)
		}
		b = varint.AppendBytes(b, scratch)
		if it.Kind != core.Completed {
			continue
		}
		results := it.Results()
		b = binary.AppendUvarint(b, uint64(len(results)))
		for _, r := range results {
			scratch, err = s.Results.Append(scratch[:0], r)
			if err != nil {
				return nil, fmt.Errorf("result of input %d of %d: %w", i+1, len(items), err)
			}
			b = varint.AppendBytes(b, scratch)
		}
	}
	return append(state, b), nil
}

func (s StateCodec[IN, OUT]) appendHead(b []byte, snapshot *Snapshot[IN, OUT]) []byte {
	b = append(b, stateVersion)
	b = varint.AppendBytes(b, codec.SchemaOf(s.Inputs))
	b = varint.AppendBytes(b, s.resultSchema())
	b = binary.AppendVarint(b, snapshot.Taken)
	marks := byte(0)
	if snapshot.Final {
		marks |= markFinal
	}
	if snapshot.Observer != nil {
		marks |= markObserver
	}
	if snapshot.Spent != 0 {
		marks |= markSpent
	}
	b = append(b, marks)
	if snapshot.Observer != nil {
		b = varint.AppendBytes(b, snapshot.Observer)
	}
	if snapshot.Spent != 0 {
		b = binary.AppendUvarint(b, math.Float64bits(snapshot.Spent))
	}
	return b
}

func appendWatermark(b []byte, w queue.Watermark) []byte {
	mark, err := w.Timestamp.MarshalBinary()
	if err != nil { // such as London's before 1847; UTC is always encodable
		mark, _ = w.Timestamp.UTC().MarshalBinary()
	}
	return varint.AppendBytes(b, mark)
}

// Decode decodes a state.
func (s StateCodec[IN, OUT]) Decode(state []byte) (snapshot Snapshot[IN, OUT], err error) {
	var none Snapshot[IN, OUT]
	d := varint.Reader{Rest: state}
	s, err = s.decodeSchemas(&d)
	if err != nil {
		return none, err
	}
	snapshot.Taken = d.Varint()
	marks := d.Byte()
	if marks >= unknownMarks {
		d.Fail(fmt.Errorf("unknown marks %d", marks))
	}
	snapshot.Final = marks&markFinal != 0
	if marks&markObserver != 0 {
		snapshot.Observer = append([]byte{}, d.Bytes()...) // not nil even if empty
	}
	if marks&markSpent != 0 {
		snapshot.Spent = math.Float64frombits(d.Uvarint())
		if !(snapshot.Spent > 0 && snapshot.Spent <= math.MaxFloat64) { // rejects NaN, too
			d.Fail(fmt.Errorf("the calls have cost %v", snapshot.Spent))
		}
	}
	var items []core.Item[IN, OUT]
	for n := d.Uvarint(); n > 0 && d.Err == nil; n-- {
		var it core.Item[IN, OUT]
		number := int64(0)
		it.Kind = core.ItemKind(d.Byte())
		switch it.Kind {
		case core.Control:
			var w queue.Watermark
			if err := w.Timestamp.UnmarshalBinary(d.Bytes()); err != nil {
				d.Fail(fmt.Errorf("watermark: %w", err))
			}
			it.Rest = w
		case core.Record, core.Completed:
			if snapshot.Observer != nil {
				number = d.Varint()
			}
			if err := s.decodeRecord(&d, &it, len(items)+1); err != nil {
				return none, err
			}
		default:
			d.Fail(fmt.Errorf("unknown kind of element: %d", it.Kind))
		}
		items = append(items, it)
		if snapshot.Observer != nil {
			snapshot.Numbers = append(snapshot.Numbers, number)
		}
	}
	if d.Err == nil && len(d.Rest) > 0 {
		d.Fail(fmt.Errorf("%d bytes too many", len(d.Rest)))
	}
	if d.Err != nil {
		return none, fmt.Errorf("element %d: %w", len(items), d.Err)
	}
	snapshot.Items = items
	return snapshot, nil
}

// decodeSchemas decodes the version and the schemas, and returns their codec.
func (s StateCodec[IN, OUT]) decodeSchemas(d *varint.Reader) (StateCodec[IN, OUT], error) {
	version := d.Byte()
	if d.Err == nil && version != stateVersion {
		return s, fmt.Errorf("version %d of the state, want %d", version, stateVersion)
	}
	inputs, results := d.Bytes(), d.Bytes()
	if d.Err != nil {
		return s, nil //nolint:nilerr // Decode returns it
	}
	return s.withSchemas(inputs, results)
}

// decodeRecord decodes a record after the observer's number. position is the position of
// the record in the state, from 1, for errors.
func (s StateCodec[IN, OUT]) decodeRecord(d *varint.Reader, it *core.Item[IN, OUT], position int) (err error) {
	attempts := d.Uvarint()
	if attempts > math.MaxInt32 {
		d.Fail(fmt.Errorf("%d attempts", attempts))
	}
	it.Attempts = int32(attempts)
	it.First = d.Varint()
	it.Spent = decodeDuration(d, "time spent")
	it.Wait = decodeDuration(d, "wait")
	if it.Wait != 0 {
		it.Retry = core.RetryKind(d.Byte())
	}
	if it.Retry > core.ByResult|core.Demanded {
		d.Fail(fmt.Errorf("unknown kind of retry: %d", it.Retry))
	}
	in := d.Bytes()
	if d.Err != nil {
		return nil //nolint:nilerr // Decode returns it
	}
	it.In, err = s.Inputs.Decode(in)
	if err != nil {
		return fmt.Errorf("input %d: %w", position, err)
	}
	if it.Kind != core.Completed {
		return nil
	}
	results, err := s.decodeResults(d)
	if err != nil {
		return fmt.Errorf("result of input %d: %w", position, err)
	}
	it.SetResults(results)
	return nil
}

// resultSchema returns 1 and the schema of the results, or nil if they are not stored.
func (s StateCodec[IN, OUT]) resultSchema() []byte {
	if s.Results == nil {
		return nil
	}
	return append([]byte{1}, codec.SchemaOf(s.Results)...)
}

func (s StateCodec[IN, OUT]) withSchemas(inputs, results []byte) (StateCodec[IN, OUT], error) {
	var err error
	s.Inputs, err = codec.WithSchema(s.Inputs, inputs)
	if err != nil {
		return s, fmt.Errorf("inputs: %w", err)
	}
	if len(results) > 0 && results[0] != 1 {
		return s, fmt.Errorf("results: unknown mark %d", results[0])
	}
	if len(results) > 0 && s.Results != nil {
		s.Results, err = codec.WithSchema(s.Results, results[1:])
		if err != nil {
			return s, fmt.Errorf("results: %w", err)
		}
	}
	return s, nil
}

func (s StateCodec[IN, OUT]) decodeResults(d *varint.Reader) (results []OUT, err error) {
	n := d.Uvarint()
	switch {
	case d.Err != nil:
		return nil, d.Err
	case n == 0:
		return nil, errors.New("the record has no result")
	case s.Results == nil:
		return nil, errors.New("it was stored, but there is no codec for results (State.Results)")
	}
	for ; n > 0 && d.Err == nil; n-- {
		b := d.Bytes()
		if d.Err != nil {
			break
		}
		r, err := s.Results.Decode(b)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, d.Err
}

func decodeDuration(d *varint.Reader, what string) time.Duration {
	n := time.Duration(d.Varint())
	if n < 0 {
		d.Fail(fmt.Errorf("negative %s: %v", what, n))
	}
	return n
}
