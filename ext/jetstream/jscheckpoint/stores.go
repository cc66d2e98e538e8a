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

// Stores returns the stores of the pipelines of a group, such as the partitions of
// package partitions, in a stream made with [StreamConfig]. Its Open takes a pipeline
// over. The stream keeps at least the last three checkpoints of each.
//
// The epoch of Open is the number of the run, from 1, such as the fencing number of the
// partition's lock: if an earlier run had a higher epoch, Open returns
// [checkpoint.ErrFenced]. With epoch 0, which [partitions.Static] gives, each run has a
// higher epoch than the previous run. Stores panics if js is nil, or stream or group is
// empty.
func Stores(js jetstream.JetStream, stream, group string) partitions.Stores {
	guard.RefuseNil("jscheckpoint: Stores", "JetStream", js)
	if stream == "" || group == "" {
		panic("jscheckpoint: Stores: the stream and the group must have names")
	}
	return stores{js, stream, group}
}

func (s stores) Open(ctx context.Context, partition string, epoch uint64) (checkpoint.Store, error) {
	return open(ctx, s.js, s.stream, s.group+"/"+partition, epoch)
}
