package call

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// passing is the future of a wrapper, which passes its completions on.
type passing struct {
	to   *Attempt[int]
	on   func() // called first, unless it is nil
	errs []error
}

func (p *passing) Complete(results ...int) {
	if p.on != nil {
		p.on()
	}
	p.to.Complete(results...)
}

func (p *passing) CompleteExceptionally(err error) {
	if p.on != nil {
		p.on()
	}
	p.errs = append(p.errs, err)
	p.to.CompleteExceptionally(err)
}

// batchOf returns a batch with n members, whose elements are 0, 1, and so on. They join
// with the context and future that join returns, or with their own if join is nil.
func batchOf(h *Host, n int, join func(i int, ctx context.Context, a *Attempt[int]) (context.Context, Future[int])) *Batch[int, int] {
	b := NewBatch[int, int](h, "function", n)
	for i := range n {
		a := b.Add()
		a.start(h, Ref{Index: uint32(i), Generation: 1}, 1, NoDeadline)
		a.EndInvoke()
		ctx, out := context.Context(b.Context()), Future[int](a)
		if join != nil {
			ctx, out = join(i, ctx, a)
		}
		b.Join(ctx, i, out)
	}
	b.Close()
	return b
}

// run makes the call on its own goroutine.
func (b *Batch[IN, OUT]) run(outcome func(i int, out Future[OUT])) (ins []IN) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Run(func(_ context.Context, all []IN) func(int, Future[OUT]) {
			ins = all
			return outcome
		})
	}()
	<-done
	return ins
}

// posted empties the mailbox and returns the elements of its letters.
func posted(h *Host) (all []int) {
	for l := h.Mail.Take(); l != nil; {
		all = append(all, int(l.Ref.Index))
		l = l.Unchain()
	}
	return all
}

// The outcomes of a call go to its members, in their order (law Q1), and the members'
// contexts end. The call has returned by then.
func TestBatch(t *testing.T) {
	h, _ := newHost(t)
	b := batchOf(h, 3, nil)
	done := b.Context().Done()
	require.False(t, b.HasReturned())
	b.run(func(i int, out Future[int]) {
		require.True(t, b.HasReturned())
		require.Empty(t, posted(h), "all of them, or none yet")
		if i == 1 {
			out.CompleteExceptionally(errTest)
		} else {
			out.Complete(i)
		}
	})
	require.Equal(t, []int{0, 1, 2}, posted(h))
	<-done
	err := b.members[1].Failure
	require.Equal(t, errTest, err)
	require.Equal(t, []int{2}, b.members[2].Results)
	require.Zero(t, h.Late())
	require.EqualValues(t, 1, h.Freed())
}

// The context of a call ends with the last member: when Err is not nil, Done is closed.
func TestBatchContextEnds(t *testing.T) {
	for range 100 {
		h, _ := newHost(t)
		b := batchOf(h, 2, nil)
		ctx := b
		done := ctx.Done()
		b.members[0].Expire()
		require.NoError(t, ctx.Err())
		b.members[1].Expire()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
		select {
		case <-done:
		default:
			t.Fatal("it is not closed")
		}
	}
}

// The future of a wrapper keeps its position among the others. The loop is notified of
// earlier outcomes before the future is called, because the future may be slow.
func TestBatchWithFuturesOfWrappers(t *testing.T) {
	h, _ := newHost(t)
	b := batchOf(h, 3, func(i int, ctx context.Context, a *Attempt[int]) (context.Context, Future[int]) {
		if i != 1 {
			return ctx, a
		}
		return ctx, &passing{to: a, on: func() {
			require.Len(t, h.C, 1, "the loop is woken")
			require.Equal(t, []int{0}, posted(h))
		}}
	})
	h.Parked.Store(true)
	b.run(func(i int, out Future[int]) { out.Complete(i) })
	require.Equal(t, []int{1, 2}, posted(h))
}

// Law A6: an outcome that breaks, such as an error whose methods break, fails its own
// member only.
func TestBatchWhoseOutcomeBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panic": func() { panic("broken") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			h, _ := newHost(t)
			b := batchOf(h, 3, nil)
			b.run(func(i int, out Future[int]) {
				if i == 1 {
					breaks()
				}
				out.Complete(i)
			})
			require.Equal(t, []int{0, 1, 2}, posted(h))
			for i := range b.members {
				err := b.members[i].Failure
				require.Equal(t, i == 1, err != nil)
			}
			require.EqualValues(t, 1, h.Freed())
		})
	}
}

// Law A6: a call that breaks has returned, and all members get its error.
func TestBatchWhoseCallBreaks(t *testing.T) {
	h, _ := newHost(t)
	var b *Batch[int, int]
	b = batchOf(h, 2, func(_ int, ctx context.Context, a *Attempt[int]) (context.Context, Future[int]) {
		return ctx, &passing{to: a, on: func() { require.True(t, b.HasReturned()) }}
	})
	b.Run(func(context.Context, []int) func(int, Future[int]) { panic("broken") })
	require.Equal(t, []int{0, 1}, posted(h))
	for i := range b.members {
		err := b.members[i].Failure
		require.ErrorContains(t, err, "panic in user code: broken")
	}
}

// Law A5: members that have ended are not called. They get no outcome, except for an
// outcome that the future of a wrapper waits for.
func TestBatchWithMembersThatAreLate(t *testing.T) {
	h, _ := newHost(t)
	var workers sync.WaitGroup
	h.Run = workers.Go
	wrapper := &passing{}
	b := batchOf(h, 3, func(i int, ctx context.Context, a *Attempt[int]) (context.Context, Future[int]) {
		if i == 1 {
			wrapper.to = a
			return ctx, wrapper
		}
		return ctx, a
	})
	b.members[0].Expire()
	b.members[1].Cut()
	require.Equal(t, []int{2}, b.run(func(i int, out Future[int]) { out.Complete(i) })[:1])
	workers.Wait()
	require.Equal(t, []int{2}, posted(h))
	require.Equal(t, []error{context.Canceled}, wrapper.errs)
	require.EqualValues(t, 1, h.Late(), "that of the wrapper")
}

// A batch whose members have all ended makes no call and returns its permit and its keys.
func TestBatchOfWhichNothingIsLeft(t *testing.T) {
	h, _ := newHost(t)
	b := batchOf(h, 2, nil)
	require.False(t, b.HasReturned())
	for i := range b.members {
		b.members[i].Expire()
	}
	b.Run(func(context.Context, []int) func(int, Future[int]) { panic("a call") })
	require.True(t, b.HasReturned())
	require.EqualValues(t, 1, h.Freed())
	require.Empty(t, posted(h))

	b = NewBatch[int, int](h, "function", 1)
	b.Add()
	require.False(t, b.Close())
	require.True(t, b.HasReturned())
	require.False(t, b.Join(t.Context(), 0, nil), "it is closed")
}

// A member is not called if its context, derived by a wrapper, has ended. The member
// itself has not ended, so it has an outcome.
func TestBatchWithContextsOfWrappers(t *testing.T) {
	h, _ := newHost(t)
	var workers sync.WaitGroup
	h.Run = workers.Go
	b := batchOf(h, 2, func(i int, ctx context.Context, a *Attempt[int]) (context.Context, Future[int]) {
		ctx, cancel := context.WithCancel(ctx)
		if i == 0 {
			cancel()
		}
		t.Cleanup(cancel)
		return ctx, a
	})
	require.Equal(t, []int{1}, b.run(func(i int, out Future[int]) { out.Complete(i) })[:1])
	workers.Wait()
	require.ElementsMatch(t, []int{0, 1}, posted(h))
	err := b.members[0].Failure
	require.Equal(t, context.Canceled, err)
}
