package messages_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/message"
)

// purgeable is a delivery that a test can purge.
type purgeable struct{ isPurged atomic.Bool }

func (*purgeable) Owner() any                                              { return nil }
func (*purgeable) Visit() (id string, visit, merges int)                   { return "", 0, 0 }
func (*purgeable) AsReceived([]byte) (payload, schema []byte, isSame bool) { return nil, nil, false }

func (p *purgeable) IsPurged() bool { return p.isPurged.Load() }
func (*purgeable) Provider() string { return "" }
func (*purgeable) SetProvider(context.Context, string) (isKept bool, err error) {
	return false, nil
}

// purging is a run of an operator whose calls wait for the end of their contexts, or for
// release.
type purging struct {
	deliveries  []*purgeable
	settlements []message.Settlement
	calls       []int
	causes      []error
	release     chan struct{}
	mu          sync.Mutex
}

func (p *purging) call(ctx context.Context, in int) (int, error) {
	p.mu.Lock()
	p.calls = append(p.calls, in)
	p.mu.Unlock()
	select {
	case <-p.release:
		return in, nil
	case <-ctx.Done():
		p.mu.Lock()
		p.causes = append(p.causes, context.Cause(ctx))
		p.mu.Unlock()
		return 0, ctx.Err()
	}
}

// start runs op with n messages until they have ended.
func (p *purging) start(t *testing.T, op *asyncop.AsyncWaitOperator[int, int], n int) (ended <-chan struct{}) {
	t.Helper()
	p.settlements = make([]message.Settlement, n)
	for range n {
		p.deliveries = append(p.deliveries, &purgeable{})
	}
	input := func(yield func(message.Message[int], error) bool) {
		for i := range n {
			m := message.New(i, &message.Meta{}, func(s message.Settlement) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.settlements[i] = s
			})
			if !yield(message.Attach(m, p.deliveries[i]), nil) {
				return
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m, err := range op.Messages(input) {
			assert.NoError(t, err)
			m.Ack()
		}
	}()
	return done
}

// called returns the elements of the calls, in the order in which they began.
func (p *purging) called() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// ended returns the causes with which the contexts of calls have ended.
func (p *purging) ended() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.causes)
}

var silent = asyncop.WithLogger(slog.New(slog.DiscardHandler))

// A message that was purged before the operator accepted it is not called either.
func TestEndPurged_BeforeItIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purging{release: make(chan struct{})}
		release := sync.OnceFunc(func() { close(p.release) })
		defer release()
		op := asyncop.UnorderedWait(asyncop.Blocking(p.call), 0, 1, silent)
		ended := p.start(t, op, 3)
		synctest.Wait()
		p.deliveries[1].isPurged.Store(true)
		op.EndPurged()
		synctest.Wait()
		release()
		<-ended
		require.Equal(t, []int{0, 2}, p.called())
		require.Equal(t, message.Released, p.settlements[1].Kind)
		require.ErrorIs(t, p.settlements[1].Err, message.ErrPurged)
	})
}

// The context of a call for several messages ends when all of them were purged, with the
// same cause as the context of a call for one.
func TestEndPurged_Batch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purging{release: make(chan struct{})}
		release := sync.OnceFunc(func() { close(p.release) })
		defer release()
		call := func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
			_, err := p.call(ctx, len(ins))
			return make([]asyncop.Result[int], len(ins)), err
		}
		op := asyncop.UnorderedWait(asyncop.Batched(call, 2, time.Minute), 0, 4, silent)
		ended := p.start(t, op, 4)
		synctest.Wait()
		p.deliveries[0].isPurged.Store(true)
		op.EndPurged()
		synctest.Wait()
		require.Empty(t, p.ended(), "the other message needs the call")
		p.deliveries[1].isPurged.Store(true)
		op.EndPurged()
		synctest.Wait()
		require.Equal(t, []int{2, 2}, p.called())
		require.Equal(t, []error{message.ErrPurged}, p.ended())
		release()
		<-ended
	})
}

// Law B1: a call that a purge ends was sent, so its share of the rate is not returned.
func TestEndPurged_KeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purging{release: make(chan struct{})}
		release := sync.OnceFunc(func() { close(p.release) })
		defer release()
		service := backend.New("service", backend.Rate(1, time.Hour), backend.WithLogger(slog.New(slog.DiscardHandler)))
		op := asyncop.UnorderedWait(asyncop.Blocking(p.call), 0, 10, asyncop.WithBackend(service), silent)
		ended := p.start(t, op, 2)
		synctest.Wait()
		require.Equal(t, []int{0}, p.called())
		p.deliveries[0].isPurged.Store(true)
		op.EndPurged()
		time.Sleep(30 * time.Minute)
		require.Equal(t, []int{0}, p.called(), "an hour has not passed")
		causes := p.ended()
		require.Len(t, causes, 1)
		require.ErrorIs(t, causes[0], message.ErrPurged)
		release()
		<-ended
		require.Equal(t, []int{0, 1}, p.called())
		require.EqualValues(t, 2, service.Stats().Started)
		require.Zero(t, service.Stats().Lost)
	})
}
