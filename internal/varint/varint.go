// Package varint reads numbers of encoding/binary's AppendUvarint and AppendVarint from
// bytes that may be damaged or malicious.
package varint

import (
	"encoding/binary"
	"errors"
)

var (
	// ErrCut is the error of bytes that end too early.
	ErrCut = errors.New("it is cut off")
	// ErrNumber is the error of a number that is too large, or has superfluous bytes. So
	// equal values have equal bytes.
	ErrNumber = errors.New("a number is malformed")
)

// Reader reads fields one after the other. After an error it returns zeros, so check Err
// once at the end.
type Reader struct {
	Rest []byte // bytes not read yet; empty after an error
	Err  error  // the first error
}

// Fail sets Err, unless it is set, and drops Rest.
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

// Varint reads a signed number, whose sign is in the lowest bit.
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

// Bytes reads bytes of AppendBytes. The result is a part of Rest, not a copy.
func (r *Reader) Bytes() []byte { return r.Take(r.Uvarint()) }

// Take reads n bytes. The result is a part of Rest, not a copy.
func (r *Reader) Take(n uint64) []byte {
	if n > uint64(len(r.Rest)) {
		r.Fail(ErrCut)
		return nil
	}
	b := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	return b
}

// AppendBytes appends the length of v and v.
func AppendBytes(dst, v []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
}
