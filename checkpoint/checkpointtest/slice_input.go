package checkpointtest

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/varint"
)

type sliceInput[T any] struct {
	values []T
	next   int
}

// NewSliceInput returns an input of values, for tests.
func NewSliceInput[T any](values []T) checkpoint.Input[T] { return &sliceInput[T]{values: values} }

func (in *sliceInput[T]) Next() (v T, err error) {
	if in.next == len(in.values) {
		return v, io.EOF
	}
	in.next++
	return in.values[in.next-1], nil
}

func (in *sliceInput[T]) Position() []byte { return binary.AppendUvarint(nil, uint64(in.next)) }

func (in *sliceInput[T]) Seek(position []byte) error {
	r := varint.Reader{Rest: position}
	n := r.Uvarint()
	if r.Err != nil || len(r.Rest) > 0 || n > uint64(len(in.values)) {
		return fmt.Errorf("checkpointtest: position %x is outside of the %d values", position, len(in.values))
	}
	in.next = int(n)
	return nil
}

func (in *sliceInput[T]) Close() error { return nil }
