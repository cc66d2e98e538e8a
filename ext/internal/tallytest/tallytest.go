// Package tallytest tests exporters of metrics, with an operator and a checkpoint of
// known numbers.
package tallytest

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ErrDown is the error of calls and of a Save.
var ErrDown = errors.New("down")

// Reasons for retries. Busy may be in doubt.
var (
	Busy    = predicates.NewReason("BUSY", false, false)
	Missing = predicates.NewReason("MISSING", true, false)
)

// NewOperator returns an operator for the elements 0 to 3. 0: results at once. 1: no
// results, then some. 2: fails three times. 3: times out after 10 s. Retries start after
// 2 s. Failed elements are dropped.
func NewOperator(opts ...asyncop.Option) *asyncop.AsyncWaitOperator[int, int] {
	fn := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		switch {
		case in == 1 && asyncop.AttemptFromContext(ctx) == 1:
			result.Complete()
		case in == 2:
			result.CompleteExceptionally(predicates.WithReason(ErrDown, Busy))
		case in == 3:
		default:
			result.Complete(in, in)
		}
		return nil
	})
	policy := strategies.ReasonAware(
		predicates.Classifiers(predicates.ByResult(predicates.EmptyResult[int], Missing), predicates.Named[int]()),
		strategies.BestEffort[int]().WithMaxRetries(2).WithBackoff(func(int) time.Duration { return 2 * time.Second }))
	return asyncop.UnorderedWaitWithRetry(fn, 10*time.Second, 10, policy.Idempotent(),
		append([]asyncop.Option{asyncop.WithDropOnFailure(), asyncop.WithDrainRetries()}, opts...)...)
}

// SlowStore is a store in memory whose Save takes two seconds, and then fails with Fails
// if that is set.
type SlowStore struct {
	checkpointtest.MemoryStore
	Fails error
}

// Save implements checkpoint.Store.
func (s *SlowStore) Save(ctx context.Context, snapshot *checkpoint.Snapshot) error {
	time.Sleep(2 * time.Second)
	if s.Fails != nil {
		return s.Fails
	}
	return s.MemoryStore.Save(ctx, snapshot)
}

// SevenBytes is a participant with a state of seven bytes, registered as "sevenBytes".
type SevenBytes struct{}

// Pending implements participant.Participant.
func (SevenBytes) Pending(b participant.Barrier) {
	b.Report("sevenBytes", participant.State{[]byte("7 bytes")}, nil)
}

// Completed implements participant.Participant.
func (SevenBytes) Completed(uint64) {}

// Aborted implements participant.Participant.
func (SevenBytes) Aborted(uint64, error) {}
