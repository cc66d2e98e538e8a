// Package varint reads what encoding/binary's AppendUvarint and AppendVarint have written, from bytes that may be damaged or
// made to harm.
package varint

import (
	"encoding/binary"
	"errors"
)

var (
	// ErrCut is the error of bytes that end too early.
	ErrCut = errors.New("it is cut off")
	// ErrNumber is the error of a number that is too large, or longer than it need be: equal values have equal bytes.
	ErrNumber = errors.New("a number is malformed")
)

// Reader reads fields one after the other. After an error it returns zeros, so it need be asked only once.
type Reader struct {
	Rest []byte // what follows; empty after an error
	Err  error  // the first error
}

// Fail notes the first error.
func (r *Reader) Fail(err error) {
	if r.Err == nil {
		r.Err = err
	}
	r.Rest = nil
}

// Uvarint reads a number.
func (r *Reader) Uvarint() uint64 {
	x, n := binary.Uvarint(r.Rest)
	switch {
	case n == 0:
		r.Fail(ErrCut)
		return 0
	case n < 0 || n > 1 && r.Rest[n-1] == 0:
		r.Fail(ErrNumber)
		return 0
	}
	r.Rest = r.Rest[n:]
	return x
}

// Varint reads a number with a sign, which is in the lowest bit.
func (r *Reader) Varint() int64 {
	x := r.Uvarint()
	return int64(x>>1) ^ -int64(x&1)
}

// Byte reads a byte.
func (r *Reader) Byte() byte {
	b := r.Take(1)
	if r.Err != nil {
		return 0
	}
	return b[0]
}

// Bytes reads what AppendBytes wrote. It is a part of Rest and not copied.
func (r *Reader) Bytes() []byte { return r.Take(r.Uvarint()) }

// Take reads n bytes. They are a part of Rest and not copied.
func (r *Reader) Take(n uint64) []byte {
	if n > uint64(len(r.Rest)) {
		r.Fail(ErrCut)
		return nil
	}
	b := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	return b
}

// AppendBytes appends v with its length before it.
func AppendBytes(dst, v []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
}
