package wire

import (
	"encoding"
	"encoding/binary"
	"math"
	"reflect"
	"time"
)

// Append appends a value to dst. The value must be of the codec's type and addressable.
func (c *Codec) Append(dst []byte, v reflect.Value) ([]byte, error) {
	out, err := c.encode(c.root, dst, v, 0)
	if err != nil {
		return dst, err
	}
	return out, nil
}

func (c *Codec) encode(n *node, dst []byte, v reflect.Value, depth int) (_ []byte, err *Error) {
	if depth > maxDepth {
		return nil, wrong("it is nested deeper than %d levels, or contains itself", maxDepth)
	}
	switch n.kind {
	case kindBool:
		if v.Bool() {
			return append(dst, 1), nil
		}
		return append(dst, 0), nil
	case kindInt:
		return binary.AppendVarint(dst, v.Int()), nil
	case kindUint:
		return binary.AppendUvarint(dst, v.Uint()), nil
	case kindFloat32:
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v.Float()))), nil
	case kindFloat64:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.Float())), nil
	case kindComplex64:
		x := complex64(v.Complex())
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(real(x)))
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(imag(x))), nil
	case kindComplex128:
		x := v.Complex()
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(real(x)))
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(imag(x))), nil
	case kindString:
		return appendString(dst, v.String()), nil
	case kindBytes:
		if v.IsNil() {
			return append(dst, 0), nil
		}
		b := v.Bytes()
		return append(binary.AppendUvarint(dst, uint64(len(b))+1), b...), nil
	case kindTime:
		return appendTime(dst, v.Addr().Interface().(*time.Time)), nil
	case kindPointer:
		if v.IsNil() {
			return append(dst, 0), nil
		}
		return c.encode(n.elem, append(dst, 1), v.Elem(), depth+1)
	case kindSlice:
		if v.IsNil() {
			return append(dst, 0), nil
		}
		return c.encodeList(n, binary.AppendUvarint(dst, uint64(v.Len())+1), v, depth+1)
	case kindArray:
		if n.n == 0 {
			return append(dst, 0), nil
		}
		return c.encodeList(n, dst, v, depth+1)
	case kindByteArray:
		return append(dst, v.Bytes()...), nil
	case kindMap:
		return c.encodeMap(n, dst, v, depth+1)
	case kindStruct:
		if len(n.fields) == 0 {
			return append(dst, 0), nil
		}
		for i := range n.fields {
			f := &n.fields[i]
			if dst, err = c.encode(f.node, dst, v.Field(f.index), depth); err != nil {
				return nil, err.in("." + f.name)
			}
		}
		return dst, nil
	case kindInterface:
		return c.encodeInterface(dst, v, depth+1)
	default: // kindBinary, kindGob, kindText
		return marshal(n, dst, v.Addr().Interface())
	}
}

func (c *Codec) encodeList(n *node, dst []byte, v reflect.Value, depth int) (_ []byte, err *Error) {
	for i := range v.Len() {
		if dst, err = c.encode(n.elem, dst, v.Index(i), depth); err != nil {
			return nil, err.in("[]")
		}
	}
	return dst, nil
}

func (c *Codec) encodeMap(n *node, dst []byte, v reflect.Value, depth int) (_ []byte, err *Error) {
	if v.IsNil() {
		return append(dst, 0), nil
	}
	dst = binary.AppendUvarint(dst, uint64(v.Len())+1)
	if v.Len() == 0 {
		return dst, nil
	}
	key, elem := reflect.New(n.key.t).Elem(), reflect.New(n.elem.t).Elem()
	for iter := v.MapRange(); iter.Next(); {
		key.SetIterKey(iter)
		if n.key.kind == kindInterface {
			if err := c.checkKey(key); err != nil {
				return nil, err.in("[key]")
			}
		}
		if dst, err = c.encode(n.key, dst, key, depth); err != nil {
			return nil, err.in("[key]")
		}
		elem.SetIterValue(iter)
		if dst, err = c.encode(n.elem, dst, elem, depth); err != nil {
			return nil, err.in("[]")
		}
	}
	return dst, nil
}

// checkKey refuses a map's key in an interface that cannot be one, or would not be the same key when it comes back.
func (c *Codec) checkKey(key reflect.Value) *Error {
	if key.IsNil() {
		return nil
	}
	if i, ok := c.index[key.Elem().Type()]; ok && c.table[i].key != nil {
		return wrong("%v", c.table[i].key)
	}
	if !key.Comparable() {
		return wrong("a %v is no key", key.Elem().Type())
	}
	return nil
}

func (c *Codec) encodeInterface(dst []byte, v reflect.Value, depth int) ([]byte, *Error) {
	if v.IsNil() {
		return append(dst, 0), nil
	}
	v = v.Elem()
	i, ok := c.index[v.Type()]
	if !ok {
		return nil, wrong("a value of type %v is in an interface: that type was not registered before the codec was made", v.Type())
	}
	n := c.table[i].node
	switch n.kind {
	case kindTime, kindStruct, kindArray, kindByteArray, kindBinary, kindGob, kindText:
		p := reflect.New(n.t).Elem() // what is in an interface has no address
		p.Set(v)
		v = p
	default:
	}
	dst, err := c.encode(n, binary.AppendUvarint(dst, uint64(i)+1), v, depth)
	if err != nil {
		return nil, err.in("(" + c.table[i].name + ")")
	}
	return dst, nil
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// marshal lets a value of n's type write itself; p points to it.
func marshal(n *node, dst []byte, p any) ([]byte, *Error) {
	var b []byte
	var err error
	switch n.kind {
	case kindBinary:
		if n.appends {
			return appendMarshal(dst, "AppendBinary", p.(encoding.BinaryAppender).AppendBinary)
		}
		b, err = p.(encoding.BinaryMarshaler).MarshalBinary()
	case kindGob:
		b, err = p.(gobEncoder).GobEncode()
	default: // kindText
		if n.appends {
			return appendMarshal(dst, "AppendText", p.(encoding.TextAppender).AppendText)
		}
		b, err = p.(encoding.TextMarshaler).MarshalText()
	}
	if err != nil {
		return nil, &Error{Reason: n.kind.String(), Err: err}
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...), nil
}

// appendMarshal puts the length before what an Append method has appended.
func appendMarshal(dst []byte, method string, appendTo func([]byte) ([]byte, error)) ([]byte, *Error) {
	begin := len(dst)
	out, err := appendTo(dst)
	if err != nil {
		return nil, &Error{Reason: method, Err: err}
	}
	if len(out) < begin {
		return nil, wrong("%s returned less than it was given", method)
	}
	size := len(out) - begin
	var prefix [binary.MaxVarintLen64]byte
	p := binary.PutUvarint(prefix[:], uint64(size))
	out = append(out, prefix[:p]...)
	copy(out[begin+p:], out[begin:begin+size])
	copy(out[begin:], prefix[:p])
	return out, nil
}
