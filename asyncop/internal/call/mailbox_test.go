package call

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// letter is what these tests post: number tells one from another.
func letter(number int) *Letter { return &Letter{Ref: Ref{Place: uint32(number), Turn: 1}} }

// numbers empties a chain as the loop does.
func numbers(l *Letter) (got []int) {
	for l != nil {
		got = append(got, int(l.Ref.Place))
		l = l.Unchain()
	}
	return got
}

func TestMailboxKeepsTheOrder(t *testing.T) {
	var m Mailbox
	assert.True(t, m.Empty())
	assert.Nil(t, m.Take())

	for i := range 5 {
		m.Post(letter(i))
		assert.False(t, m.Empty())
	}
	assert.Equal(t, []int{0, 1, 2, 3, 4}, numbers(m.Take()))
	assert.True(t, m.Empty())
	assert.Nil(t, m.Take())

	m.Post(letter(5))
	assert.Equal(t, []int{5}, numbers(m.Take()))
}

// What is posted while a chain is being read belongs to the next one.
func TestMailboxWhileItIsRead(t *testing.T) {
	var m Mailbox
	m.Post(letter(1))
	m.Post(letter(2))
	chain := m.Take()
	m.Post(letter(3))
	assert.Equal(t, []int{1, 2}, numbers(chain))
	assert.Equal(t, []int{3}, numbers(m.Take()))
}

// Against a plain slice.
func TestMailboxAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var m Mailbox
	var model []int
	for i := range 10_000 {
		if random.IntN(4) > 0 {
			m.Post(letter(i))
			model = append(model, i)
			continue
		}
		require.Equal(t, model, numbers(m.Take()))
		model = nil
		require.True(t, m.Empty())
	}
}

// Every letter arrives once, and those of one sender in its order.
func TestMailboxManySenders(t *testing.T) {
	const senders, each = 8, 5000
	var m Mailbox
	var posting sync.WaitGroup
	for s := range senders {
		posting.Go(func() {
			for i := range each {
				m.Post(letter(s*each + i))
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
		for _, n := range numbers(m.Take()) {
			require.Equal(t, next[n/each], n%each, "sender %d", n/each)
			next[n/each]++
		}
	}
	for s, n := range next {
		assert.Equal(t, each, n, "sender %d", s)
	}
}

func TestMailboxAllocatesNothing(t *testing.T) {
	var m Mailbox
	a, b := letter(1), letter(2)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		m.Post(a)
		m.Post(b)
		m.Take()
	}))
}
