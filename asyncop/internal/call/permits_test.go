package call

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// sleeping returns a part whose operator sleeps, and waits for so many permits.
func sleeping(t *testing.T, p *Permits, wants int) *Share {
	t.Helper()
	s := awake(p)
	require.False(t, s.Take())
	s.Settle(true)
	sleep(t, s, wants)
	return s
}

func sleep(t *testing.T, s *Share, wants int) {
	t.Helper()
	s.sleeper.Parked.Store(true)
	require.True(t, s.Wait(wants))
	require.True(t, s.Wait(wants), "it waits already")
}

// woken reports whether the operator is woken, which then is awake.
func woken(s *Share) bool {
	select {
	case <-s.sleeper.C:
		s.sleeper.Parked.Store(false)
		return true
	default:
		return false
	}
}

// takes takes what it can for an operator that is awake, up to n, and settles.
func takes(s *Share, n int) (taken int) {
	for taken < n && s.Take() {
		taken++
	}
	s.Settle(taken < n)
	return taken
}

func used(p *Permits) int {
	_, n := p.Counts()
	return n
}

func awake(p *Permits) *Share {
	sleeper := NewSleeper()
	return p.Join(&sleeper, 0)
}

// Those who sleep get permits in turn, and nobody takes what was set aside for one.
func TestPermitsInTurn(t *testing.T) {
	p := NewPermits(1)
	a := awake(p)
	require.Equal(t, 1, takes(a, 2))
	b, c := sleeping(t, p, 1), sleeping(t, p, 1)
	a.Release()
	require.Zero(t, takes(a, 1), "it is set aside for the first who waits")
	require.True(t, woken(b))
	require.False(t, woken(c))
	require.Zero(t, takes(c, 1))
	require.Equal(t, 1, takes(b, 1))
	require.Zero(t, takes(b, 1))
	b.Release()
	require.False(t, woken(c), "it is awake")
	sleeper := c.sleeper
	sleeper.Parked.Store(true)
	require.False(t, c.Wait(1), "there is one")
	sleeper.Parked.Store(false)
	require.Equal(t, 1, takes(c, 1))
	sleep(t, a, 1)
	c.Release()
	require.True(t, woken(a))
	a.Settle(false) // it does not need it any more
	require.Zero(t, used(p))
	b.Settle(false)
	require.Equal(t, 1, takes(b, 1))
	b.Release()
	require.Zero(t, used(p))
}

// One who is awake may be held up: nothing is set aside for it.
func TestNoPermitForThoseHeldUp(t *testing.T) {
	p := NewPermits(1)
	a := awake(p)
	require.Equal(t, 1, takes(a, 1))
	b, c := sleeping(t, p, 1), sleeping(t, p, 1)
	b.sleeper.Parked.Store(false) // by something else, and now it is blocked in user code
	a.Release()
	require.True(t, woken(c))
	require.Equal(t, 1, takes(c, 1))
	c.Release()
	require.False(t, woken(b))
	require.Equal(t, 1, takes(b, 1), "it looks by itself")
}

// While others are short each may take its part, and what the others cannot use goes to who sleeps. The one with the fewest
// calls is next.
func TestPartsOfPermits(t *testing.T) {
	p := NewPermits(6)
	a := awake(p)
	require.Equal(t, 6, takes(a, 8), "nobody else is short")
	b, c := sleeping(t, p, 8), sleeping(t, p, 1)
	sleep(t, a, 2)
	for range 4 {
		a.Release()
	}
	require.True(t, woken(a))
	require.True(t, woken(b))
	require.True(t, woken(c))
	require.Equal(t, 1, takes(a, 8))
	require.Equal(t, 2, takes(b, 8))
	require.Equal(t, 1, takes(c, 1), "it has a use for no more")

	for range 3 {
		a.Release()
	}
	require.Equal(t, 3, used(p), "a and b are awake")
	require.Equal(t, 3, takes(a, 8), "the half: b is short, too")
	a.Release()
	c.Release()
	require.Equal(t, 1, takes(a, 8))
	require.Equal(t, 5, used(p), "the last one is for b")
	a.sleeper.Parked.Store(true)
	require.False(t, a.Wait(1), "b may be held up")
	a.sleeper.Parked.Store(false)
	require.Equal(t, 1, takes(a, 1))
	require.Equal(t, 6, used(p))
}

func TestSetLimit(t *testing.T) {
	p := NewPermits(0)
	a := awake(p)
	require.Zero(t, takes(a, 1))
	b, c, d := sleeping(t, p, 1), sleeping(t, p, 1), sleeping(t, p, 1)
	p.SetLimit(2)
	require.True(t, woken(b))
	require.True(t, woken(c))
	require.False(t, woken(d))
	require.Equal(t, 1, takes(b, 1))
	require.Equal(t, 1, takes(c, 1))
	p.SetLimit(1)
	limit, n := p.Counts()
	require.Equal(t, []int{1, 2}, []int{limit, n})
	b.Release()
	require.False(t, woken(d), "still one too many")
	c.Release()
	require.True(t, woken(d))
}

// One that ends keeps nothing from the others.
func TestLeave(t *testing.T) {
	p := NewPermits(1)
	a := awake(p)
	require.Equal(t, 1, takes(a, 1))
	b, c := sleeping(t, p, 1), sleeping(t, p, 1)
	b.Leave()
	a.Release()
	require.False(t, woken(b))
	require.True(t, woken(c))
	d := sleeping(t, p, 1)
	c.Leave() // with what was set aside for it
	require.True(t, woken(d))
	require.Equal(t, 1, takes(d, 1))
	d.Leave()
	require.Equal(t, 1, used(p), "its call runs")
	d.Release()
	require.Zero(t, used(p))
}

// A call on the permit of the call around it needs none.
func TestLentPermit(t *testing.T) {
	p := NewPermits(1)
	outer := awake(p)
	require.True(t, outer.Take())
	sleeper := NewSleeper()
	inner := p.Join(&sleeper, 1)
	require.Equal(t, 1, takes(inner, 2))
	sleep(t, inner, 1)
	inner.Release()
	require.True(t, woken(inner), "the lent one is free again")
	require.False(t, inner.Wait(1))
	p.SetLimit(2)
	require.True(t, inner.Take())
	require.True(t, inner.Take())
	require.Equal(t, 2, used(p))
	inner.Release()
	require.Equal(t, 1, used(p))
	inner.Release()
	require.Equal(t, 1, used(p))
	outer.Release()
	require.Zero(t, used(p))
}

// However an attempt ends and its function returns, its permit comes back once, and not before both; without the loop, as soon
// as it is complete.
func TestSharedPermitComesBackOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		h, _ := newHost(t)
		p := NewPermits(1)
		h.Share = awake(p)
		h.Run = func(task func()) { task() }
		require.True(t, h.Share.Take())
		a := newAttempt(h)
		over, runs := false, false
		var returned func()
		endOf := func(e Released) {
			if e.Over {
				h.Share.Release()
			}
			over = true
		}
		steps := []func(){
			func() { a.Complete(1); over = true },
			func() { a.CompleteOne(1); over = true },
			func() { a.CompleteExceptionally(errTest); over = true },
			func() { a.Refuse(errTest); over = true },
			func() { endOf(a.Expire()) },
			func() { endOf(a.Cut()) },
			func() { a.LetGo() },
			func() { a.cutOff(context.DeadlineExceeded); over = true },
		}
		switch random.IntN(3) {
		case 0: // callbacks
		case 1: // a blocking call that the loop has started
			a.Occupy()
			runs, returned = true, func() { a.Returned() }
			if random.IntN(2) == 0 {
				returned = func() { (*Returning[int])(a).Complete(2); over = true }
			}
		case 2: // one inside of another function
			gate, started, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			h.Run = func(task func()) { go func() { task(); close(done) }() }
			a.RunBlocking(func(error) { close(started); <-gate })
			<-started
			runs, returned = true, func() { close(gate); <-done }
		}
		check := func() {
			want := 1
			if over && !runs {
				want = 0
			}
			require.Equal(t, want, used(p))
		}
		check()
		for range 3 {
			steps[random.IntN(len(steps))]()
			check()
			if runs && random.IntN(3) == 0 {
				runs = false
				returned()
				check()
			}
		}
		if runs {
			runs = false
			returned()
		}
		endOf(a.Cut())
		check()
		h.Cancel(nil)
	}
}

// A handler and a strategy that is asked have no permit.
func TestOnlyAttemptsHavePermits(t *testing.T) {
	h, _ := newHost(t)
	p := NewPermits(1)
	h.Share = awake(p)
	require.True(t, h.Share.Take())
	handling := new(Handling[int])
	handling.Start(h, Ref{Turn: 1}, 0, NoDeadline)
	handling.Run(func() ([]int, error) { return nil, nil })
	require.Equal(t, 1, used(p))
	var question Token
	question.Start(h, Ref{Turn: 1}, 3, NoDeadline)
	question.Finish()
	require.Equal(t, 1, used(p))
}

// The context of a call says which permits it has, also through calls without permits in between.
func TestPermitsInTheContext(t *testing.T) {
	h, _ := newHost(t)
	p := NewPermits(1)
	h.Share = awake(p)
	outer := newAttempt(h)
	require.Equal(t, true, outer.Value(PermitsKey{p}))
	require.Nil(t, outer.Value(PermitsKey{NewPermits(1)}))
	between, _ := newHost(t)
	between.Values = outer
	inner := newAttempt(between)
	require.Equal(t, true, inner.Value(PermitsKey{p}))
	require.Nil(t, inner.Value(PermitsKey{nil}))
}

// Many who take and give, wait and leave: never more than there are, and none is lost.
func TestPermitsAtRandom(t *testing.T) {
	p := NewPermits(3)
	var mu sync.Mutex
	running, most := 0, 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			sleeper := NewSleeper()
			s := p.Join(&sleeper, 0)
			defer s.Leave()
			for range 500 {
				for !s.Take() {
					s.Settle(true)
					sleeper.Sleep(func() bool { return s.Wait(1) })
				}
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				mu.Lock()
				running--
				mu.Unlock()
				s.Release()
				s.Settle(false)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most, 3)
	require.Zero(t, used(p))
}
