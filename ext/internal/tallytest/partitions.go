package tallytest

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/partitions"
)

type lagging struct{ checkpoint.Input[int] }

func (lagging) Wait(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (lagging) Lag() int64                     { return 7 }

// refusing refuses only the lock of the partition c.
type refusing struct{ lock.Locks }

func (l refusing) Acquire(ctx context.Context, name, owner string, d time.Duration) (lock.Grant, error) {
	if name == "g/partition/c" {
		return lock.Grant{}, ErrDown
	}
	return l.Locks.Acquire(ctx, name, owner, d)
}

type stores struct{}

func (stores) Open(context.Context, string, uint64) (checkpoint.Store, error) {
	return checkpointtest.NewMemoryStore(), nil
}

// RunPartitions runs three partitions until ctx ends: a has a lag of 7, b fails, and c
// has no owner.
func RunPartitions(ctx context.Context, m *partitions.Monitor) error {
	quiet := slog.New(slog.DiscardHandler)
	return partitions.Run(ctx, partitions.Config{
		Assigner: &partitions.Leases{
			Locks: refusing{memory.Open().Locks()}, Group: "g", Partitions: []string{"a", "b", "c"}, Logger: quiet,
		},
		Stores: stores{}, Logger: quiet, Monitor: m, Checkpoints: []checkpoint.Option{checkpoint.WithLogger(quiet)},
		Pipeline: func(_ context.Context, p partitions.Partition) error {
			if p.Name == "b" {
				return ErrDown
			}
			checkpoint.NewSource(p.Coordinator, "source", lagging{checkpointtest.NewSliceInput([]int{})})
			<-p.Coordinator.Ended()
			return p.Coordinator.Wait()
		},
	})
}
