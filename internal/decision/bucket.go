package decision

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// Bucket is the tokens of a strategies.Budget. A nil one covers everything. Safe for concurrent use.
type Bucket struct {
	fraction  int64   // in grains
	perSecond float64 // in tokens
	capacity  int64   // in grains
	clock     clock.Clock

	balance atomic.Int64 // in grains; from 0 to capacity

	mu       sync.Mutex
	credited time.Time // guarded by mu: until when perSecond is in balance
	rest     float64   // guarded by mu: part of a grain that is not
}

// grain is the smallest part of a token. Whole numbers of grains make ten tenths a whole.
const grain = 1_000_000_000

// maxTokens keeps the balance within an int64 of grains.
const maxTokens = math.MaxInt32

// NewBucket returns a full bucket. A fraction of a billionth is the smallest that counts, and a burst of 2³¹−1 the largest.
func NewBucket(fraction, perSecond float64, burst int, c clock.Clock) *Bucket {
	b := &Bucket{fraction: int64(math.Round(fraction * grain)), perSecond: perSecond, capacity: int64(min(burst, maxTokens)) * grain}
	return b.WithClock(c)
}

// WithClock returns a full bucket with the settings of b and the clock c.
func (b *Bucket) WithClock(c clock.Clock) *Bucket {
	n := &Bucket{fraction: b.fraction, perSecond: b.perSecond, capacity: b.capacity, clock: c}
	n.balance.Store(n.capacity)
	n.credited = c.Now()
	return n
}

// Deposit is called for every first attempt. It costs one atomic load while the bucket is full.
func (b *Bucket) Deposit() {
	if b != nil {
		b.add(b.fraction)
	}
}

// Withdraw takes one token and reports whether there was one. It is called for every retry that is about to be scheduled.
func (b *Bucket) Withdraw() bool {
	if b == nil {
		return true
	}
	b.creditTime()
	for {
		balance := b.balance.Load()
		if balance < grain {
			return false
		}
		if b.balance.CompareAndSwap(balance, balance-grain) {
			return true
		}
	}
}

// Balance returns the tokens that are there, for metrics.
func (b *Bucket) Balance() float64 {
	if b == nil {
		return math.Inf(1)
	}
	b.creditTime()
	return float64(b.balance.Load()) / grain
}

// add puts grains into the bucket, as far as there is room. What order deposits
// and time come in makes no difference as long as nothing is taken in between.
func (b *Bucket) add(grains int64) {
	for {
		balance := b.balance.Load()
		filled := balance + min(grains, b.capacity-balance)
		if filled == balance || b.balance.CompareAndSwap(balance, filled) {
			return
		}
	}
}

// creditTime puts in what has come with time since it was called last.
func (b *Bucket) creditTime() {
	if b.perSecond == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	passed := now.Sub(b.credited)
	if passed <= 0 {
		return
	}
	b.credited = now
	grains := float64(passed)*b.perSecond + b.rest // nanoseconds times tokens a second are grains
	if grains >= float64(b.capacity) {
		b.rest = 0
		b.add(b.capacity)
		return
	}
	whole := math.Floor(grains)
	b.rest = grains - whole
	b.add(int64(whole))
}
