package asyncop

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// letter is what these tests post: number tells one from another.
func letter(number int) *attempt[int, int] { return &attempt[int, int]{number: int32(number)} }

// numbers empties a chain as the loop does.
func numbers(a *attempt[int, int]) (got []int) {
	for a != nil {
		got = append(got, int(a.number))
		a, a.next = a.next, nil
	}
	return got
}

func TestMailboxKeepsTheOrder(t *testing.T) {
	var m mailbox[int, int]
	assert.True(t, m.empty())
	assert.Nil(t, m.take())

	for i := range 5 {
		m.post(letter(i))
		assert.False(t, m.empty())
	}
	assert.Equal(t, []int{0, 1, 2, 3, 4}, numbers(m.take()))
	assert.True(t, m.empty())
	assert.Nil(t, m.take())

	m.post(letter(5))
	assert.Equal(t, []int{5}, numbers(m.take()))
}

// What is posted while a chain is being read belongs to the next one.
func TestMailboxWhileItIsRead(t *testing.T) {
	var m mailbox[int, int]
	m.post(letter(1))
	m.post(letter(2))
	chain := m.take()
	m.post(letter(3))
	assert.Equal(t, []int{1, 2}, numbers(chain))
	assert.Equal(t, []int{3}, numbers(m.take()))
}

// Against a plain slice.
func TestMailboxAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var m mailbox[int, int]
	var model []int
	for i := range 10_000 {
		if random.IntN(4) > 0 {
			m.post(letter(i))
			model = append(model, i)
			continue
		}
		require.Equal(t, model, numbers(m.take()))
		model = nil
		require.True(t, m.empty())
	}
}

// Every letter arrives once, and those of one sender in its order.
func TestMailboxManySenders(t *testing.T) {
	const senders, each = 8, 5000
	var m mailbox[int, int]
	var posting sync.WaitGroup
	for s := range senders {
		posting.Go(func() {
			for i := range each {
				m.post(letter(s*each + i))
			}
		})
	}
	done := make(chan struct{})
	go func() {
		posting.Wait()
		close(done)
	}()

	next := [senders]int{}
	for last := false; !last; {
		select {
		case <-done:
			last = true // one more look
		default:
		}
		for _, n := range numbers(m.take()) {
			require.Equal(t, next[n/each], n%each, "sender %d", n/each)
			next[n/each]++
		}
	}
	for s, n := range next {
		assert.Equal(t, each, n, "sender %d", s)
	}
}

func TestMailboxAllocatesNothing(t *testing.T) {
	var m mailbox[int, int]
	a, b := letter(1), letter(2)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		m.post(a)
		m.post(b)
		m.take()
	}))
}

// Law Q1: a call that completes at once does not overtake completions that were taken from the mailbox with the answer that
// started it.
func TestCompletionAtOnceDoesNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		futures := map[string]ResultFuture[string]{}
		fn := Func(func(ctx context.Context, in string, result ResultFuture[string]) error {
			switch {
			case in == "b":
				futures[in] = result
			case AttemptFromContext(ctx) == 1:
				return errors.New("broken")
			default:
				result.Complete("A")
			}
			return nil
		})
		refresh := strategies.ReasonStrategyFunc[string](
			func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
				return strategies.Action{Retry: true, Before: func(context.Context) error { return nil }}, nil
			})
		p := strategies.ReasonAware(predicates.ByException[string](predicates.HasException,
			predicates.NewReason("TEST", true, false)), refresh).Immediate()
		c := newCore(newConfig(nil), fn, delegatorOf(p, nil), time.Minute, queue.NewUnordered[slot[string, string]](4))
		c.accept("a")
		c.accept("b")
		c.startWaiting()
		synctest.Wait() // a's refresh has answered
		futures["b"].Complete("B")
		c.turn()
		c.turn()
		for _, want := range []string{"B", "A"} {
			assert.Equal(t, []string{want}, c.queue.Head().Value.attempt.results)
			c.queue.Pop()
		}
		c.workers.stop()
	})
}
