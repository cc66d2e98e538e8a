package jscheckpoint

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/partitions"
)

type stores struct {
	js            jetstream.JetStream
	stream, group string
}

// Stores returns the stores of the partitions of a group, in a stream that was made with [StreamConfig]. With epoch 0, which [partitions.Static]
// gives, the store that was opened last owns the partition. It panics if an argument is nil or empty.
func Stores(js jetstream.JetStream, stream, group string) partitions.Stores {
	guard.RefuseNil("jscheckpoint: Stores", "JetStream", js)
	if stream == "" || group == "" {
		panic("jscheckpoint: Stores: the stream and the group must have names")
	}
	return stores{js, stream, group}
}

// Open implements [partitions.Stores].
func (s stores) Open(ctx context.Context, partition string, epoch uint64) (checkpoint.Store, error) {
	return Open(ctx, s.js, s.stream, s.group+"/"+partition, epoch)
}
