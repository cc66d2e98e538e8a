package asyncop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/asyncop/internal/engine"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/queue"
)

// stateVersion is the first byte of an operator's state. Version 1, which has neither a time nor waits, is read.
const stateVersion = 2

// stateCodec encodes the items of a checkpoint:
//
//	version  schema of inputs  schema of results  taken  count
//	{ kind  [record: attempts  first  spent  wait [retry]  input] [completed: + n {result}] [control: time] }
//
// Numbers are varints, everything else is preceded by its length. Times are Unix nanoseconds, those of attempts 0 for none;
// taken is when the checkpoint was. The rest of a back-off, wait, is relative to it; retry tells more if that is not 0.
type stateCodec[IN, OUT any] struct {
	inputs  codec.Codec[IN]
	results codec.Codec[OUT] // nil: results are not stored
}

// newStateCodec returns the codecs that were chosen, and panics if they are not for this operator.
func newStateCodec[IN, OUT any](constructor string, cfg config) stateCodec[IN, OUT] {
	var s stateCodec[IN, OUT]
	var ok bool
	if cfg.inputCodec == nil {
		s.inputs = defaultInputCodec[IN](constructor)
	} else if s.inputs, ok = cfg.inputCodec.(codec.Codec[IN]); !ok {
		panic(fmt.Sprintf("asyncop: %s: WithInputCodec: %T is no codec for %T", constructor, cfg.inputCodec, *new(IN)))
	}
	if cfg.resultCodec != nil {
		if s.results, ok = cfg.resultCodec.(codec.Codec[OUT]); !ok {
			panic(fmt.Sprintf("asyncop: %s: WithResultCodec: %T is no codec for %T", constructor, cfg.resultCodec, *new(OUT)))
		}
	}
	return s
}

// defaultInputCodec returns codec.Default, and names the option to be used if it refuses the type.
func defaultInputCodec[IN any](constructor string) codec.Codec[IN] {
	defer func() {
		if refused := recover(); refused != nil {
			panic(fmt.Sprintf("asyncop: %s: WithCheckpoints needs WithInputCodec: %v", constructor, refused))
		}
	}()
	return codec.Default[IN]()
}

// pieceSize is about how large the pieces of a state are.
const pieceSize = 1 << 20

// encode is called on a goroutine of its own; the codecs are user code.
func (s stateCodec[IN, OUT]) encode(taken int64, items []engine.Item[IN, OUT]) (state participant.State, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanicError(v)
		}
	}()
	b := []byte{stateVersion}
	b = appendBytes(b, codec.SchemaOf(s.inputs))
	b = appendBytes(b, s.resultSchema())
	b = binary.AppendVarint(b, taken)
	b = binary.AppendUvarint(b, uint64(len(items)))
	var scratch []byte
	for i := range items {
		it := &items[i]
		if len(b) >= pieceSize {
			state = append(state, b)
			b = make([]byte, 0, cap(b))
		}
		b = append(b, byte(it.Kind))
		if it.Kind == engine.Control {
			at := it.Rest.(queue.Watermark).Timestamp
			mark, err := at.MarshalBinary()
			if err != nil { // an offset that it has no bytes for, such as London's before 1847
				mark, err = at.UTC().MarshalBinary()
			}
			if err != nil {
				return nil, fmt.Errorf("watermark: %w", err)
			}
			b = appendBytes(b, mark)
			continue
		}
		b = binary.AppendUvarint(b, uint64(it.Attempts))
		b = binary.AppendVarint(b, it.First)
		b = binary.AppendVarint(b, int64(it.Spent))
		if b = binary.AppendVarint(b, int64(it.Wait)); it.Wait != 0 {
			b = append(b, byte(it.Retry))
		}
		if scratch, err = s.inputs.Append(scratch[:0], it.In); err != nil {
			return nil, fmt.Errorf("input %d of %d: %w", i+1, len(items), err)
		}
		b = appendBytes(b, scratch)
		if it.Kind != engine.Completed {
			continue
		}
		results := it.Results()
		b = binary.AppendUvarint(b, uint64(len(results)))
		for _, r := range results {
			if scratch, err = s.results.Append(scratch[:0], r); err != nil {
				return nil, fmt.Errorf("result of input %d of %d: %w", i+1, len(items), err)
			}
			b = appendBytes(b, scratch)
		}
	}
	return append(state, b), nil
}

// decode returns the items of a state, and when it was taken.
func (s stateCodec[IN, OUT]) decode(state []byte) (taken int64, items []engine.Item[IN, OUT], err error) {
	defer func() {
		if v := recover(); v != nil {
			taken, items, err = 0, nil, newPanicError(v)
		}
	}()
	d := decoder{rest: state}
	version := d.byte()
	if d.err == nil && (version == 0 || version > stateVersion) {
		return 0, nil, fmt.Errorf("version %d of the state, want 1 to %d", version, stateVersion)
	}
	inputs, results := d.bytes(), d.bytes()
	if d.err == nil {
		if s, err = s.withSchemas(inputs, results); err != nil {
			return 0, nil, err
		}
	}
	if version > 1 {
		taken = d.varint()
	}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		var it engine.Item[IN, OUT]
		switch it.Kind = engine.ItemKind(d.byte()); it.Kind {
		case engine.Control:
			var w queue.Watermark
			if err := w.Timestamp.UnmarshalBinary(d.bytes()); err != nil {
				d.fail(fmt.Errorf("watermark: %w", err))
			}
			it.Rest = w
		case engine.Record, engine.Completed:
			it.Attempts = d.attempts()
			it.First = d.varint()
			it.Spent = d.duration("time spent")
			if version > 1 {
				it.Wait, it.Retry = d.wait()
			}
			in := d.bytes()
			if d.err != nil {
				break
			}
			if it.In, err = s.inputs.Decode(in); err != nil {
				return 0, nil, fmt.Errorf("input %d: %w", len(items)+1, err)
			}
			if it.Kind == engine.Completed {
				results, err := s.decodeResults(&d)
				if err != nil {
					return 0, nil, fmt.Errorf("result of input %d: %w", len(items)+1, err)
				}
				it.SetResults(results)
			}
		default:
			d.fail(fmt.Errorf("unknown kind of element: %d", it.Kind))
		}
		items = append(items, it)
	}
	if d.err == nil && len(d.rest) > 0 {
		d.fail(fmt.Errorf("%d bytes too many", len(d.rest)))
	}
	if d.err != nil {
		return 0, nil, fmt.Errorf("element %d: %w", len(items), d.err)
	}
	return taken, items, nil
}

// resultSchema tells apart from no schema that results are not stored.
func (s stateCodec[IN, OUT]) resultSchema() []byte {
	if s.results == nil {
		return nil
	}
	return append([]byte{1}, codec.SchemaOf(s.results)...)
}

// withSchemas returns what decodes values that were stored under these schemas.
func (s stateCodec[IN, OUT]) withSchemas(inputs, results []byte) (stateCodec[IN, OUT], error) {
	var err error
	if s.inputs, err = codec.WithSchema(s.inputs, inputs); err != nil {
		return s, fmt.Errorf("inputs: %w", err)
	}
	if len(results) > 0 && results[0] != 1 {
		return s, fmt.Errorf("results: unknown mark %d", results[0])
	}
	if len(results) > 0 && s.results != nil {
		if s.results, err = codec.WithSchema(s.results, results[1:]); err != nil {
			return s, fmt.Errorf("results: %w", err)
		}
	}
	return s, nil
}

func (s stateCodec[IN, OUT]) decodeResults(d *decoder) (results []OUT, err error) {
	n := d.uvarint()
	switch {
	case d.err != nil:
		return nil, d.err
	case n == 0:
		return nil, errors.New("there is none")
	case s.results == nil:
		return nil, errors.New("it was stored, but WithResultCodec is not given")
	}
	for ; n > 0 && d.err == nil; n-- {
		b := d.bytes()
		if d.err != nil {
			break
		}
		r, err := s.results.Decode(b)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, d.err
}

// decoder reads what encode wrote; after an error it returns zeros.
type decoder struct {
	rest []byte
	err  error
}

var errTruncated = errors.New("the state is cut off")

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.rest = nil
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail(errTruncated)
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	switch {
	case n <= 0:
		d.fail(errTruncated)
		return 0
	case n > 1 && d.rest[n-1] == 0:
		d.fail(errors.New("a number that is longer than it need be"))
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// varint reads what binary.AppendVarint wrote: the sign is in the lowest bit.
func (d *decoder) varint() int64 {
	v := d.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (d *decoder) duration(what string) time.Duration {
	n := d.varint()
	if n < 0 {
		d.fail(fmt.Errorf("negative %s: %v", what, time.Duration(n)))
		return 0
	}
	return time.Duration(n)
}

func (d *decoder) wait() (time.Duration, engine.RetryKind) {
	wait := d.duration("wait")
	if wait == 0 {
		return 0, 0
	}
	kind := engine.RetryKind(d.byte())
	if kind > engine.ByResult|engine.Demanded {
		d.fail(fmt.Errorf("unknown kind of retry: %d", kind))
	}
	return wait, kind
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail(errTruncated)
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) attempts() int32 {
	n := d.uvarint()
	if n > 1<<31-1 {
		d.fail(fmt.Errorf("%d attempts", n))
		return 0
	}
	return int32(n)
}

func appendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}
