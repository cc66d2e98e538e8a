package call

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// letter returns a letter that number identifies.
func letter(number int) *Letter { return &Letter{Ref: Ref{Index: uint32(number), Generation: 1}} }

// post posts a letter.
func post(h *Host, place int) {
	l := letter(place)
	h.Post(l, l)
}

// numbers empties a chain as the loop does.
func numbers(l *Letter) (got []int) {
	for l != nil {
		got = append(got, int(l.Ref.Index))
		l = l.Unchain()
	}
	return got
}

func TestMailboxKeepsTheOrder(t *testing.T) {
	m := Host{Sleeper: NewSleeper()}
	assert.True(t, m.Mail.Empty())
	assert.Nil(t, m.Mail.Take())

	for i := range 5 {
		post(&m, i)
		assert.False(t, m.Mail.Empty())
	}
	assert.Equal(t, []int{0, 1, 2, 3, 4}, numbers(m.Mail.Take()))
	assert.True(t, m.Mail.Empty())
	assert.Nil(t, m.Mail.Take())

	post(&m, 5)
	assert.Equal(t, []int{5}, numbers(m.Mail.Take()))
}

// Letters that are posted while a chain is being read belong to the next chain.
func TestMailboxWhileItIsRead(t *testing.T) {
	m := Host{Sleeper: NewSleeper()}
	post(&m, 1)
	post(&m, 2)
	chain := m.Mail.Take()
	post(&m, 3)
	assert.Equal(t, []int{1, 2}, numbers(chain))
	assert.Equal(t, []int{3}, numbers(m.Mail.Take()))
}

// Letters that are in the mailbox when it is closed, or that are posted later, are not
// retained.
func TestMailboxThatIsClosed(t *testing.T) {
	m := Host{Sleeper: NewSleeper()}
	post := func() weak.Pointer[Letter] {
		l := letter(1)
		m.Post(l, l)
		return weak.Make(l)
	}
	before := post()
	m.Mail.Close()
	after := post()
	runtime.GC()
	assert.Nil(t, before.Value())
	assert.Nil(t, after.Value())
	runtime.KeepAlive(&m)
}

// The mailbox behaves like a plain slice.
func TestMailboxAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	m := Host{Sleeper: NewSleeper()}
	var model []int
	for i := range 10_000 {
		if random.IntN(4) > 0 {
			post(&m, i)
			model = append(model, i)
			continue
		}
		require.Equal(t, model, numbers(m.Mail.Take()))
		model = nil
		require.True(t, m.Mail.Empty())
	}
}

// Every letter arrives once, and the letters of one sender arrive in order.
func TestMailboxManySenders(t *testing.T) {
	const senders, each = 8, 5000
	m := Host{Sleeper: NewSleeper()}
	var posting sync.WaitGroup
	for s := range senders {
		posting.Go(func() {
			for i := range each {
				post(&m, s*each+i)
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
			last = true // read the mailbox once more
		default:
		}
		for _, n := range numbers(m.Mail.Take()) {
			require.Equal(t, next[n/each], n%each, "sender %d", n/each)
			next[n/each]++
		}
	}
	for s, n := range next {
		assert.Equal(t, each, n, "sender %d", s)
	}
}

func TestMailboxAllocatesNothing(t *testing.T) {
	m := Host{Sleeper: NewSleeper()}
	a, b := letter(1), letter(2)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		m.Post(a, a)
		m.Post(b, b)
		m.Mail.Take()
	}))
}
