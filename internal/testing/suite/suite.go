// Package suite contains helpers of conformance suites.
package suite

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
)

// EqualOr returns equal, or reflect.DeepEqual if it is nil.
func EqualOr[T any](equal func(a, b T) bool) func(a, b T) bool {
	if equal != nil {
		return equal
	}
	return func(a, b T) bool { return reflect.DeepEqual(a, b) }
}

// Quiet turns a panic into an error.
func Quiet(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// SpoilBytes changes every byte of b.
func SpoilBytes(b []byte) {
	for i := range b {
		b[i] ^= 0xa5
	}
}

// Spoiled returns prefixes of b, copies with changed bytes, and unrelated bytes.
func Spoiled(b []byte) (all [][]byte) {
	const at = 200 // indexes in b
	step := max(1, len(b)/at)
	for i := 0; i < len(b); i += step {
		all = append(all, b[:i])
		for _, bits := range []byte{1, 0x80, 0xff} {
			changed := bytes.Clone(b)
			changed[i] ^= bits
			all = append(all, changed)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 64 {
		junk := make([]byte, n)
		for i := range junk {
			junk[i] = byte(random.Uint32())
		}
		all = append(all, junk, bytes.Repeat([]byte{0xff}, n), append(bytes.Clone(b), junk...))
	}
	return all
}
