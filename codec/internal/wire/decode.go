package wire

import (
	"encoding"
	"encoding/binary"
	"math"
	"reflect"
	"strconv"
	"time"
)

// Decode reads a value from all of src into v, which must be settable, of the codec's type and zero. After an error v may
// hold a part of the value. v keeps no reference to src.
func (r *Reader) Decode(src []byte, v reflect.Value) error {
	d := &decoder{src: src, table: r.table, codec: r.codec}
	err := d.read(r.root, v, 0)
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return err
	}
	return nil
}

type decoder struct {
	src   []byte
	off   int
	table []*tableReader
	codec *Codec
}

func (d *decoder) wrong(format string, args ...any) *Error {
	err := wrong(format, args...)
	err.Reason += " (at byte " + strconv.Itoa(d.off) + " of " + strconv.Itoa(len(d.src)) + ")"
	return err
}

func (d *decoder) end() *Error {
	if d.off != len(d.src) {
		return d.wrong("%d bytes are left over", len(d.src)-d.off)
	}
	return nil
}

func (d *decoder) byte() (byte, *Error) {
	if d.off == len(d.src) {
		return 0, d.wrong("it ends too early")
	}
	d.off++
	return d.src[d.off-1], nil
}

// flag reads a byte that is 0 or 1.
func (d *decoder) flag() (bool, *Error) {
	b, err := d.byte()
	if err == nil && b > 1 {
		err = d.wrong("neither 0 nor 1")
	}
	return b == 1, err
}

func (d *decoder) uvarint() (uint64, *Error) {
	x, n := binary.Uvarint(d.src[d.off:])
	if n <= 0 {
		return 0, d.wrong("not a number")
	}
	d.off += n
	return x, nil
}

func (d *decoder) varint() (int64, *Error) {
	x, n := binary.Varint(d.src[d.off:])
	if n <= 0 {
		return 0, d.wrong("not a number")
	}
	d.off += n
	return x, nil
}

// take returns the next n bytes, not copied.
func (d *decoder) take(n uint64) ([]byte, *Error) {
	if n > uint64(len(d.src)-d.off) {
		return nil, d.wrong("it should go on for %d bytes", n)
	}
	b := d.src[d.off : d.off+int(n) : d.off+int(n)]
	d.off += int(n)
	return b, nil
}

// bytes returns the next length and bytes, not copied.
func (d *decoder) bytes() ([]byte, *Error) {
	n, err := d.uvarint()
	if err != nil {
		return nil, err
	}
	return d.take(n)
}

// count reads a number of things that take a byte each, at least.
func (d *decoder) count() (int, *Error) {
	n, err := d.uvarint()
	if err != nil {
		return 0, err
	}
	if n > uint64(len(d.src)-d.off) {
		return 0, d.wrong("it should have %d parts", n)
	}
	return int(n), nil
}

// length reads the length of something that may be nil.
func (d *decoder) length() (n int, isNil bool, err *Error) {
	x, err := d.uvarint()
	switch {
	case err != nil:
		return 0, false, err
	case x == 0:
		return 0, true, nil
	case x-1 > uint64(len(d.src)-d.off):
		return 0, false, d.wrong("it should have %d parts", x-1)
	}
	return int(x - 1), false, nil
}

func (d *decoder) float32() (float32, *Error) {
	b, err := d.take(4)
	if err != nil {
		return 0, err
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b)), nil
}

func (d *decoder) float64() (float64, *Error) {
	b, err := d.take(8)
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
}

func (d *decoder) complex(k kind) (complex128, *Error) {
	if k == kindComplex64 {
		re, err := d.float32()
		if err != nil {
			return 0, err
		}
		im, err := d.float32()
		return complex128(complex(re, im)), err
	}
	re, err := d.float64()
	if err != nil {
		return 0, err
	}
	im, err := d.float64()
	return complex(re, im), err
}

func (d *decoder) deep(depth int) *Error {
	if depth > maxDepth {
		return d.wrong("nested deeper than %d levels", maxDepth)
	}
	return nil
}

func (d *decoder) read(r *reader, v reflect.Value, depth int) *Error {
	if err := d.deep(depth); err != nil {
		return err
	}
	switch k := r.wire.kind; k {
	case kindBool:
		x, err := d.flag()
		v.SetBool(x)
		return err
	case kindInt:
		x, err := d.varint()
		if err == nil && v.OverflowInt(x) {
			err = d.wrong("%d does not fit into %v", x, r.t)
		}
		v.SetInt(x)
		return err
	case kindUint:
		x, err := d.uvarint()
		if err == nil && v.OverflowUint(x) {
			err = d.wrong("%d does not fit into %v", x, r.t)
		}
		v.SetUint(x)
		return err
	case kindFloat32:
		x, err := d.float32()
		v.SetFloat(float64(x))
		return err
	case kindFloat64:
		x, err := d.float64()
		v.SetFloat(x)
		return err
	case kindComplex64, kindComplex128:
		x, err := d.complex(k)
		v.SetComplex(x)
		return err
	case kindString:
		b, err := d.bytes()
		v.SetString(string(b))
		return err
	case kindBytes:
		n, isNil, err := d.length()
		if err != nil || isNil {
			return err
		}
		b, err := d.take(uint64(n))
		if err == nil {
			v.SetBytes(append(make([]byte, 0, n), b...))
		}
		return err
	case kindTime:
		t, err := d.time()
		*v.Addr().Interface().(*time.Time) = t
		return err
	case kindPointer:
		set, err := d.flag()
		if err != nil || !set {
			return err
		}
		p := reflect.New(r.t.Elem())
		v.Set(p)
		return d.read(r.elem, p.Elem(), depth+1)
	case kindSlice:
		return d.readSlice(r, v, depth+1)
	case kindArray:
		return d.readArray(r, v, depth+1)
	case kindByteArray:
		b, err := d.take(uint64(r.wire.n))
		copy(v.Bytes(), b)
		return err
	case kindMap:
		return d.readMap(r, v, depth+1)
	case kindStruct:
		return d.readStruct(r, v, depth)
	case kindInterface:
		return d.readInterface(r, v, depth+1)
	default: // kindBinary, kindGob, kindText
		b, err := d.bytes()
		if err == nil {
			err = unmarshal(k, b, v.Addr().Interface())
		}
		return err
	}
}

// empty reads the byte that stands for something that has none of its own.
func (d *decoder) empty() *Error {
	b, err := d.byte()
	if err == nil && b != 0 {
		err = d.wrong("not 0")
	}
	return err
}

func (d *decoder) readStruct(r *reader, v reflect.Value, depth int) *Error {
	if len(r.fields) == 0 {
		return d.empty()
	}
	for i := range r.fields {
		f := &r.fields[i]
		var err *Error
		if f.r == nil {
			err = d.skip(f.wire, depth, depth)
		} else {
			err = d.read(f.r, v.Field(f.index), depth)
		}
		if err != nil {
			return err.in("." + f.name)
		}
	}
	return nil
}

// startSize is how many bytes of elements are made at once; the rest follows as elements are found in the bytes. So a
// length costs nothing by itself.
const startSize = 4 << 10

func (d *decoder) readSlice(r *reader, v reflect.Value, depth int) *Error {
	n, isNil, err := d.length()
	if err != nil || isNil {
		return err
	}
	elem := max(1, int(r.t.Elem().Size()))
	have := min(n, max(1, startSize/elem))
	v.Set(reflect.MakeSlice(r.t, have, have))
	for i := range n {
		if i == have {
			more := min(n-have, have)
			v.Grow(more)
			have += more
			v.SetLen(have)
		}
		if err := d.read(r.elem, v.Index(i), depth); err != nil {
			return err.in("[]")
		}
	}
	return nil
}

func (d *decoder) readArray(r *reader, v reflect.Value, depth int) *Error {
	if r.wire.n == 0 {
		return d.empty()
	}
	for i := range r.wire.n {
		if err := d.read(r.elem, v.Index(i), depth); err != nil {
			return err.in("[]")
		}
	}
	return nil
}

func (d *decoder) readMap(r *reader, v reflect.Value, depth int) *Error {
	n, isNil, err := d.length()
	if err != nil || isNil {
		return err
	}
	size := max(1, int(r.t.Key().Size()+r.t.Elem().Size()))
	m := reflect.MakeMapWithSize(r.t, min(n, startSize/size))
	v.Set(m)
	key, elem := reflect.New(r.t.Key()).Elem(), reflect.New(r.t.Elem()).Elem()
	for range n {
		key.SetZero()
		elem.SetZero()
		if err := d.read(r.key, key, depth); err != nil {
			return err.in("[key]")
		}
		if r.key.wire.kind == kindInterface {
			if err := d.codec.checkKey(key); err != nil {
				return d.wrong("%s", err.Reason).in("[key]")
			}
		}
		if err := d.read(r.elem, elem, depth); err != nil {
			return err.in("[]")
		}
		m.SetMapIndex(key, elem)
	}
	return nil
}

// tableEntry reads the number of a type in an interface; nil: there is nothing in it.
func (d *decoder) tableEntry() (int, *tableReader, *Error) {
	i, err := d.uvarint()
	switch {
	case err != nil, i == 0:
		return 0, nil, err
	case i > uint64(len(d.table)):
		return 0, nil, d.wrong("type %d of %d", i, len(d.table))
	}
	return int(i - 1), d.table[i-1], nil
}

func (d *decoder) readInterface(r *reader, v reflect.Value, depth int) *Error {
	i, entry, err := d.tableEntry()
	switch {
	case err != nil, entry == nil:
		return err
	case entry.err != nil:
		return &Error{Reason: "a " + entry.name + " was stored here", Err: entry.err}
	case !r.fits[i]:
		return d.wrong("a %v was stored here, which is no %v", entry.t, r.t)
	}
	x := reflect.New(entry.t).Elem()
	if err := d.read(entry.r, x, depth); err != nil {
		return err.in("(" + entry.name + ")")
	}
	v.Set(x)
	return nil
}

// unmarshal lets a value read itself; p points to it.
func unmarshal(k kind, b []byte, p any) *Error {
	var err error
	switch k {
	case kindBinary:
		err = p.(encoding.BinaryUnmarshaler).UnmarshalBinary(b)
	case kindGob:
		err = p.(gobDecoder).GobDecode(b)
	default: // kindText
		err = p.(encoding.TextUnmarshaler).UnmarshalText(b)
	}
	if err != nil {
		return &Error{Reason: k.String(), Err: err}
	}
	return nil
}

// maxSteps bounds how deep skip recurses: the steps into fields are none of a value's levels, but a hostile schema may have a
// struct that contains itself.
const maxSteps = 16 * maxDepth

// skip reads over a value that is not wanted: what can be read can be skipped.
func (d *decoder) skip(n *node, depth, steps int) *Error {
	if err := d.deep(depth); err != nil {
		return err
	}
	if steps > maxSteps {
		return d.wrong("nested deeper than %d structs", maxSteps)
	}
	switch n.kind {
	case kindBool:
		_, err := d.flag()
		return err
	case kindInt, kindUint:
		_, err := d.uvarint()
		return err
	case kindFloat32:
		_, err := d.take(4)
		return err
	case kindFloat64, kindComplex64:
		_, err := d.take(8)
		return err
	case kindComplex128:
		_, err := d.take(16)
		return err
	case kindString, kindBinary, kindGob, kindText:
		_, err := d.bytes()
		return err
	case kindBytes:
		size, _, err := d.length()
		if err == nil {
			_, err = d.take(uint64(size))
		}
		return err
	case kindTime:
		_, err := d.time()
		return err
	case kindPointer:
		set, err := d.flag()
		if err != nil || !set {
			return err
		}
		return d.skip(n.elem, depth+1, steps+1)
	case kindSlice:
		count, _, err := d.length()
		if err != nil {
			return err
		}
		return d.skipAll(count, depth+1, steps+1, n.elem)
	case kindArray:
		if n.n == 0 {
			return d.empty()
		}
		return d.skipAll(n.n, depth+1, steps+1, n.elem)
	case kindByteArray:
		_, err := d.take(uint64(n.n))
		return err
	case kindMap:
		count, _, err := d.length()
		if err != nil {
			return err
		}
		return d.skipAll(count, depth+1, steps+1, n.key, n.elem)
	case kindStruct:
		if len(n.fields) == 0 {
			return d.empty()
		}
		for _, f := range n.fields {
			if err := d.skip(f.node, depth, steps+1); err != nil {
				return err.in("." + f.name)
			}
		}
		return nil
	default: // kindInterface
		_, entry, err := d.tableEntry()
		if err != nil || entry == nil {
			return err
		}
		return d.skip(entry.wire, depth+1, steps+1)
	}
}

// skipAll skips the nodes, count times. Each takes a byte at least, so a count that is too high ends with the bytes.
func (d *decoder) skipAll(count, depth, steps int, nodes ...*node) *Error {
	for range count {
		for _, n := range nodes {
			if err := d.skip(n, depth, steps); err != nil {
				return err
			}
		}
	}
	return nil
}
