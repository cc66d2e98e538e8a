package drive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/varint"
	"github.com/weirflow/weir/queue"
)

// stateVersion is the first byte of an operator's state. Those before it were never released.
const stateVersion = 3

// Snapshot is what the state of an operator says.
type Snapshot[IN, OUT any] struct {
	Taken int64 // when, in Unix nanoseconds
	Final bool  // nothing was called after it
	Items []core.Item[IN, OUT]

	Observer []byte  // the state of an observer; nil: there is none
	Numbers  []int64 // of the items, if there is one; 0 of control elements
}

// hasCalls reports whether a record in flight may have been called.
func (s *Snapshot[IN, OUT]) hasCalls() bool {
	return slices.ContainsFunc(s.Items, func(it core.Item[IN, OUT]) bool { return it.Kind == core.Record && it.First != 0 })
}

// Marks of a state: bits.
const (
	markFinal byte = 1 << iota
	markObserver
	unknownMarks
)

// StateCodec encodes the items of a checkpoint:
//
//	version  schema of inputs  schema of results  taken  marks [observer: its state]  count
//	{ kind  [record: [observer: number]  attempts  first  spent  wait [retry]  input] [completed: + n {result}] [control: time] }
//
// Numbers are varints, everything else is preceded by its length. Times are Unix nanoseconds, those of attempts 0 for none;
// taken is when the checkpoint was. The rest of a back-off, wait, is relative to it; retry has more if that is not 0.
type StateCodec[IN, OUT any] struct {
	Inputs  codec.Codec[IN]
	Results codec.Codec[OUT] // nil: results are not stored
}

// pieceSize is about how large the pieces of a state are.
const pieceSize = 1 << 20

// Encode returns the state for a snapshot. The codecs are user code: its callers guard against that.
func (s StateCodec[IN, OUT]) Encode(snapshot Snapshot[IN, OUT]) (state participant.State, err error) {
	b := []byte{stateVersion}
	b = varint.AppendBytes(b, codec.SchemaOf(s.Inputs))
	b = varint.AppendBytes(b, s.resultSchema())
	b = binary.AppendVarint(b, snapshot.Taken)
	marks := byte(0)
	if snapshot.Final {
		marks |= markFinal
	}
	if snapshot.Observer != nil {
		b = varint.AppendBytes(append(b, marks|markObserver), snapshot.Observer)
	} else {
		b = append(b, marks)
	}
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
			if b, err = appendWatermark(b, it.Rest.(queue.Watermark)); err != nil {
				return nil, err
			}
			continue
		}
		if snapshot.Observer != nil {
			b = binary.AppendVarint(b, snapshot.Numbers[i])
		}
		b = binary.AppendUvarint(b, uint64(it.Attempts))
		b = binary.AppendVarint(b, it.First)
		b = binary.AppendVarint(b, int64(it.Spent))
		if b = binary.AppendVarint(b, int64(it.Wait)); it.Wait != 0 {
			b = append(b, byte(it.Retry))
		}
		if scratch, err = s.Inputs.Append(scratch[:0], it.In); err != nil {
			return nil, fmt.Errorf("input %d of %d: %w", i+1, len(items), err)
		}
		b = varint.AppendBytes(b, scratch)
		if it.Kind != core.Completed {
			continue
		}
		results := it.Results()
		b = binary.AppendUvarint(b, uint64(len(results)))
		for _, r := range results {
			if scratch, err = s.Results.Append(scratch[:0], r); err != nil {
				return nil, fmt.Errorf("result of input %d of %d: %w", i+1, len(items), err)
			}
			b = varint.AppendBytes(b, scratch)
		}
	}
	return append(state, b), nil
}

func appendWatermark(b []byte, w queue.Watermark) ([]byte, error) {
	mark, err := w.Timestamp.MarshalBinary()
	if err != nil { // an offset that it has no bytes for, such as London's before 1847
		mark, err = w.Timestamp.UTC().MarshalBinary()
	}
	if err != nil {
		return nil, fmt.Errorf("watermark: %w", err)
	}
	return varint.AppendBytes(b, mark), nil
}

// Decode returns what a state says.
func (s StateCodec[IN, OUT]) Decode(state []byte) (snapshot Snapshot[IN, OUT], err error) {
	var none Snapshot[IN, OUT]
	d := decoder{varint.Reader{Rest: state}}
	version := d.Byte()
	if d.Err == nil && version != stateVersion {
		return none, fmt.Errorf("version %d of the state, want %d", version, stateVersion)
	}
	inputs, results := d.Bytes(), d.Bytes()
	if d.Err == nil {
		if s, err = s.withSchemas(inputs, results); err != nil {
			return none, err
		}
	}
	snapshot.Taken = d.Varint()
	snapshot.Final, snapshot.Observer = d.marks()
	var items []core.Item[IN, OUT]
	for n := d.Uvarint(); n > 0 && d.Err == nil; n-- {
		var it core.Item[IN, OUT]
		number := int64(0)
		switch it.Kind = core.ItemKind(d.Byte()); it.Kind {
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

// decodeRecord decodes the record with a number, but for that of its observer.
func (s StateCodec[IN, OUT]) decodeRecord(d *decoder, it *core.Item[IN, OUT], number int) (err error) {
	it.Attempts = d.attempts()
	it.First = d.Varint()
	it.Spent = d.duration("time spent")
	it.Wait, it.Retry = d.wait()
	in := d.Bytes()
	if d.Err != nil {
		return nil //nolint:nilerr // Decode says so
	}
	if it.In, err = s.Inputs.Decode(in); err != nil {
		return fmt.Errorf("input %d: %w", number, err)
	}
	if it.Kind != core.Completed {
		return nil
	}
	results, err := s.decodeResults(d)
	if err != nil {
		return fmt.Errorf("result of input %d: %w", number, err)
	}
	it.SetResults(results)
	return nil
}

// resultSchema says that results are not stored, which is not the same as no schema.
func (s StateCodec[IN, OUT]) resultSchema() []byte {
	if s.Results == nil {
		return nil
	}
	return append([]byte{1}, codec.SchemaOf(s.Results)...)
}

// withSchemas returns what decodes values that were stored under these schemas.
func (s StateCodec[IN, OUT]) withSchemas(inputs, results []byte) (StateCodec[IN, OUT], error) {
	var err error
	if s.Inputs, err = codec.WithSchema(s.Inputs, inputs); err != nil {
		return s, fmt.Errorf("inputs: %w", err)
	}
	if len(results) > 0 && results[0] != 1 {
		return s, fmt.Errorf("results: unknown mark %d", results[0])
	}
	if len(results) > 0 && s.Results != nil {
		if s.Results, err = codec.WithSchema(s.Results, results[1:]); err != nil {
			return s, fmt.Errorf("results: %w", err)
		}
	}
	return s, nil
}

func (s StateCodec[IN, OUT]) decodeResults(d *decoder) (results []OUT, err error) {
	n := d.Uvarint()
	switch {
	case d.Err != nil:
		return nil, d.Err
	case n == 0:
		return nil, errors.New("there is none")
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

// decoder reads what Encode wrote; after an error it returns zeros.
type decoder struct{ varint.Reader }

// marks reads the marks, and the state of an observer; not nil if there is one.
func (d *decoder) marks() (final bool, observer []byte) {
	marks := d.Byte()
	if marks >= unknownMarks {
		d.Fail(fmt.Errorf("unknown marks %d", marks))
	}
	if d.Err == nil && marks&markObserver != 0 {
		observer = append([]byte{}, d.Bytes()...) // user code gets it
	}
	return marks&markFinal != 0, observer
}

func (d *decoder) duration(what string) time.Duration {
	n := d.Varint()
	if n < 0 {
		d.Fail(fmt.Errorf("negative %s: %v", what, time.Duration(n)))
		return 0
	}
	return time.Duration(n)
}

func (d *decoder) wait() (time.Duration, core.RetryKind) {
	wait := d.duration("wait")
	if wait == 0 {
		return 0, 0
	}
	kind := core.RetryKind(d.Byte())
	if kind > core.ByResult|core.Demanded {
		d.Fail(fmt.Errorf("unknown kind of retry: %d", kind))
	}
	return wait, kind
}

func (d *decoder) attempts() int32 {
	n := d.Uvarint()
	if n > 1<<31-1 {
		d.Fail(fmt.Errorf("%d attempts", n))
		return 0
	}
	return int32(n)
}
