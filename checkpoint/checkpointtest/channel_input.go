package checkpointtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
)

type channelInput[T any] struct {
	values <-chan T
	read   uint64 // elements returned by Next

	waited bool // Wait has received v and ok
	v      T
	ok     bool
}

var _ checkpoint.Waiter = (*channelInput[any])(nil)

// NewChannelInput returns an input of a channel, for tests. It ends when the channel is
// closed. It is a [checkpoint.Waiter]. After a restart the channel must deliver the same
// elements from the first. It panics if values is nil.
func NewChannelInput[T any](values <-chan T) checkpoint.Input[T] {
	guard.RefuseNil("checkpointtest: NewChannelInput", "channel", values)
	return &channelInput[T]{values: values}
}

func (in *channelInput[T]) Wait(ctx context.Context) error {
	if in.waited {
		return nil
	}
	select {
	case in.v, in.ok = <-in.values:
		in.waited = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (in *channelInput[T]) Next() (v T, err error) {
	_ = in.Wait(context.Background())
	v, ok := in.v, in.ok
	var none T
	in.waited, in.v = false, none
	if !ok {
		return v, io.EOF
	}
	in.read++
	return v, nil
}

func (in *channelInput[T]) Position() []byte { return binary.AppendUvarint(nil, in.read) }

// Seek discards the elements before the position.
func (in *channelInput[T]) Seek(position []byte) error {
	r := varint.Reader{Rest: position}
	n := r.Uvarint()
	if r.Err != nil || len(r.Rest) > 0 {
		return fmt.Errorf("checkpointtest: damaged position %x of a channel", position)
	}
	for in.read < n {
		if _, err := in.Next(); err != nil {
			return fmt.Errorf("checkpointtest: the channel ended after %d elements, before position %d", in.read, n)
		}
	}
	return nil
}

func (in *channelInput[T]) Close() error { return nil }
