package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// ErrRecords tells that a state is not a list of records, or a damaged one.
var ErrRecords = errors.New("checkpoint: not a list of records")

// Record is an entry of a state that is a list, with what an operator has to know about an element beside its value.
type Record struct {
	// Kind is what the record is. Its meaning is the writer's.
	Kind uint8
	// Attempts is how many attempts have begun; not negative.
	Attempts int
	// First is when the first of them began, by the wall clock; zero: none has. It comes back in UTC.
	First time.Time
	// Spent is how much of its time the element had used up.
	Spent time.Duration
	// Value is the encoding of the element.
	Value []byte
}

// A list of records:
//
//	version byte | length of schema uvarint | schema | records | 0 u32 | number of records uvarint
//
// where a record is
//
//	length of what follows u32 | kind byte | attempts uvarint | spent varint | 0, or 1 and first (seconds varint,
//	nanoseconds uvarint) | value
const (
	recordsVersion = 1
	recordLength   = 4 // bytes

	recordsPiece = 1 << 20 // bytes of a piece of the state
	recordsSlack = 4 << 10 // left free at the end of a piece, so that an ordinary record does not make it grow
)

// RecordWriter builds a state out of records. It is owned by one goroutine.
type RecordWriter struct {
	state State
	piece []byte // the last one, growing
	n     uint64
}

// NewRecordWriter returns a writer of an empty list whose values were encoded under a schema: see [SchemaOf].
func NewRecordWriter(schema []byte) *RecordWriter {
	piece := append(make([]byte, 0, len(schema)+64), recordsVersion)
	return &RecordWriter{piece: append(binary.AppendUvarint(piece, uint64(len(schema))), schema...)}
}

// Append adds a record. It copies r.Value.
func (w *RecordWriter) Append(r Record) error {
	return w.append(r, func(dst []byte) ([]byte, error) { return append(dst, r.Value...), nil })
}

// AppendRecord adds a record whose value is v; r.Value is not used. After an error of the codec, or a panic, which becomes
// a *[PanicError], the list is as it was.
func AppendRecord[T any](w *RecordWriter, r Record, c Codec[T], v T) error {
	return w.append(r, func(dst []byte) (_ []byte, err error) {
		defer recoverTo(&err)
		return c.Append(dst, v)
	})
}

// DecodeRecord returns the value of a record. A panic of the codec becomes a *[PanicError].
func DecodeRecord[T any](c Codec[T], r Record) (v T, err error) {
	defer recoverTo(&err)
	return c.Decode(r.Value)
}

func (w *RecordWriter) append(r Record, value func(dst []byte) ([]byte, error)) error {
	if r.Attempts < 0 {
		return fmt.Errorf("checkpoint: a record with %d attempts", r.Attempts)
	}
	if len(w.piece) > recordsPiece-recordsSlack {
		w.state = append(w.state, w.piece)
		w.piece = make([]byte, 0, recordsPiece)
	}
	begin := len(w.piece)
	b := append(w.piece, 0, 0, 0, 0, r.Kind)
	b = binary.AppendUvarint(b, uint64(r.Attempts))
	b = binary.AppendVarint(b, int64(r.Spent))
	if r.First.IsZero() {
		b = append(b, 0)
	} else {
		b = binary.AppendVarint(append(b, 1), r.First.Unix())
		b = binary.AppendUvarint(b, uint64(r.First.Nanosecond()))
	}
	header := len(b)
	b, err := value(b)
	switch {
	case err != nil:
		return err
	case len(b) < header:
		return errors.New("checkpoint: a codec's Append returned less than it was given")
	case uint64(len(b)-begin-recordLength) > math.MaxUint32:
		return fmt.Errorf("checkpoint: a record of %d bytes is too long", len(b)-begin)
	}
	binary.LittleEndian.PutUint32(b[begin:], uint32(len(b)-begin-recordLength))
	w.piece = b
	w.n++
	return nil
}

// Len returns the number of records so far.
func (w *RecordWriter) Len() int { return int(w.n) }

// State ends the list and returns it. The writer must not be used any more.
func (w *RecordWriter) State() State {
	end := binary.AppendUvarint(append(w.piece, 0, 0, 0, 0), w.n)
	return append(w.state, end)
}

// RecordReader reads what a [RecordWriter] has written. It is owned by one goroutine.
type RecordReader struct {
	src    []byte // what follows
	schema []byte
	size   int
	n      uint64
	err    error // sticky; io.EOF after the last record
}

// ReadRecords returns a reader of a state. The error matches [ErrRecords] if the state is not a list of records. The
// bytes may be hostile: nothing is allocated for them.
func ReadRecords(state State) (*RecordReader, error) {
	src := state.Bytes()
	r := &RecordReader{src: src, size: len(src)}
	if len(src) == 0 || src[0] != recordsVersion {
		return nil, r.fail("it does not begin as one")
	}
	length, n := binary.Uvarint(src[1:])
	if n <= 0 || length > uint64(len(src)-1-n) {
		return nil, r.fail("the schema is cut off")
	}
	begin := 1 + n
	r.schema, r.src = src[begin:begin+int(length):begin+int(length)], src[begin+int(length):]
	return r, nil
}

// Schema returns the schema that the values were encoded under: see [CodecFor].
func (r *RecordReader) Schema() []byte { return r.schema }

// Next returns the next record, whose Value is a part of the state. After the last one it returns [io.EOF]; any other
// error matches [ErrRecords].
func (r *RecordReader) Next() (Record, error) {
	if r.err != nil {
		return Record{}, r.err
	}
	rec, err := r.next()
	r.err = err
	return rec, err
}

func (r *RecordReader) next() (rec Record, err error) {
	if len(r.src) < recordLength {
		return Record{}, r.fail("the end is missing")
	}
	length := binary.LittleEndian.Uint32(r.src)
	r.src = r.src[recordLength:]
	switch {
	case length == 0:
		count, n := binary.Uvarint(r.src)
		if n <= 0 || n != len(r.src) || count != r.n {
			return Record{}, r.fail("it does not end well")
		}
		return Record{}, io.EOF
	case uint64(length) > uint64(len(r.src)):
		return Record{}, r.fail("a record of %d bytes is cut off", length)
	}
	f := fields{b: r.src[:length:length]}
	r.src = r.src[length:]
	rec.Kind = f.byte()
	attempts := f.uvarint()
	rec.Attempts = int(attempts)
	rec.Spent = time.Duration(f.varint())
	switch first := f.byte(); first {
	case 0:
	case 1:
		seconds, nanoseconds := f.varint(), f.uvarint()
		if nanoseconds >= 1e9 {
			return Record{}, r.fail("a record has no good time")
		}
		rec.First = time.Unix(seconds, int64(nanoseconds)).UTC()
	default:
		f.bad = true
	}
	if f.bad || attempts > math.MaxInt {
		return Record{}, r.fail("a record has no good header")
	}
	rec.Value = f.b
	r.n++
	return rec, nil
}

func (r *RecordReader) fail(format string, args ...any) error {
	return fmt.Errorf("%w: %s (at byte %d of %d, after %d records)",
		ErrRecords, fmt.Sprintf(format, args...), r.size-len(r.src), r.size, r.n)
}

// fields reads the fields of a header. Once bad, it stays so.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) byte() byte {
	if len(f.b) == 0 {
		f.bad = true
		return 0
	}
	b := f.b[0]
	f.b = f.b[1:]
	return b
}

func (f *fields) uvarint() uint64 {
	x, n := binary.Uvarint(f.b)
	return x * f.skip(n)
}

func (f *fields) varint() int64 {
	x, n := binary.Varint(f.b)
	return x * int64(f.skip(n))
}

func (f *fields) skip(n int) uint64 {
	if n <= 0 {
		f.bad = true
		return 0
	}
	f.b = f.b[n:]
	return 1
}

// MarshalState returns a state that holds one value, with the schema of its codec: for participants whose state is small,
// such as a source's position.
func MarshalState[T any](c Codec[T], v T) (State, error) {
	w := NewRecordWriter(SchemaOf(c))
	if err := AppendRecord(w, Record{}, c, v); err != nil {
		return nil, err
	}
	return w.State(), nil
}

// UnmarshalState returns the value of a state that [MarshalState] has made. The error matches [ErrRecords] or is a
// *[CodecError] if it cannot.
func UnmarshalState[T any](c Codec[T], state State) (v T, err error) {
	r, err := ReadRecords(state)
	if err != nil {
		return v, err
	}
	if c, err = CodecFor(c, r.Schema()); err != nil {
		return v, err
	}
	rec, err := r.Next()
	if errors.Is(err, io.EOF) {
		return v, r.fail("it should hold one value")
	}
	if err != nil {
		return v, err
	}
	if v, err = DecodeRecord(c, rec); err != nil {
		return v, err
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		var zero T
		return zero, r.fail("it should hold one value")
	}
	return v, nil
}
