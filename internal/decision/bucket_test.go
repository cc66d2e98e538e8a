package decision_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/decision"
)

func TestBucket(t *testing.T) {
	mock := clock.NewMock()
	b := decision.NewBucket(0.1, 0, 10, mock)
	withdraw := func(n int) (granted int) {
		for range n {
			if b.Withdraw() {
				granted++
			}
		}
		return granted
	}
	assert.Equal(t, 10, withdraw(20), "it starts full")
	for range 9 {
		b.Deposit()
	}
	assert.Zero(t, withdraw(5), "nine tenths are no token")
	b.Deposit()
	assert.Equal(t, 1.0, b.Balance())
	assert.Equal(t, 1, withdraw(5), "ten tenths are one, exactly")
	mock.Add(time.Hour)
	assert.Zero(t, withdraw(5), "no time in this one")
	for range 1000 {
		b.Deposit()
	}
	assert.Equal(t, 10, withdraw(20), "no more than burst is kept")
}

func TestBucketPerSecond(t *testing.T) {
	mock := clock.NewMock()
	b := decision.NewBucket(0, 0.5, 2, mock)
	assert.True(t, b.Withdraw())
	assert.True(t, b.Withdraw())
	for range 3 {
		mock.Add(2*time.Second - time.Nanosecond)
		assert.False(t, b.Withdraw())
		mock.Add(time.Nanosecond)
		assert.True(t, b.Withdraw(), "a token every two seconds")
	}
	for range 20 {
		mock.Add(100 * time.Millisecond)
		assert.GreaterOrEqual(t, b.Balance(), 0.0) // looking often loses nothing
	}
	assert.InDelta(t, 1, b.Balance(), 1e-7)
	mock.Add(1000 * time.Hour)
	assert.Equal(t, 2.0, b.Balance())
}

func TestNilBucketCoversEverything(t *testing.T) {
	var b *decision.Bucket
	b.Deposit()
	assert.True(t, b.Withdraw())
	assert.True(t, math.IsInf(b.Balance(), 1))
}

// Against a model that works in whole billionths and credits time eagerly.
func TestBucketFollowsItsModel(t *testing.T) {
	const whole = int64(1_000_000_000)
	rapid.Check(t, func(t *rapid.T) {
		perMille := rapid.Int64Range(0, 1000).Draw(t, "perMille")
		perSecond := rapid.Int64Range(0, 1000).Draw(t, "perSecond")
		burst := rapid.Int64Range(1, 20).Draw(t, "burst")
		mock := clock.NewMock()
		b := decision.NewBucket(float64(perMille)/1000, float64(perSecond), int(burst), mock)

		balance, limit := burst*whole, burst*whole
		deposits, granted, elapsed := int64(0), int64(0), time.Duration(0)
		t.Repeat(map[string]func(*rapid.T){
			"deposit": func(*rapid.T) {
				b.Deposit()
				deposits++
				balance = min(limit, balance+perMille*whole/1000)
			},
			"withdraw": func(t *rapid.T) {
				want := balance >= whole
				if got := b.Withdraw(); got != want {
					t.Fatalf("withdrawn %t, balance of the model %d", got, balance)
				}
				if want {
					granted++
					balance -= whole
				}
			},
			"wait": func(t *rapid.T) {
				d := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "d"))
				mock.Add(d)
				elapsed += d
				balance = min(limit, balance+int64(d)*perSecond)
			},
			"": func(t *rapid.T) {
				if got := b.Balance(); math.Abs(got-float64(balance)/float64(whole)) > 1e-9 {
					t.Fatalf("balance %v, of the model %d", got, balance)
				}
				// The law of the documentation.
				if granted*whole > burst*whole+deposits*perMille*whole/1000+int64(elapsed)*perSecond {
					t.Fatalf("%d retries for %d attempts in %v", granted, deposits, elapsed)
				}
			},
		})
	})
}

func TestBucketIsSafeForConcurrentUse(t *testing.T) {
	const goroutines, rounds = 8, 2000
	mock := clock.NewMock()
	b := decision.NewBucket(0.25, 1, 10, mock)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				b.Deposit()
				if b.Withdraw() {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	b.Balance()
	assert.LessOrEqual(t, granted.Load(), int64(10+goroutines*rounds/4))
	assert.GreaterOrEqual(t, granted.Load(), int64(goroutines*rounds/4), "nothing is lost")
}

func BenchmarkBucketDeposit(b *testing.B) {
	for name, burst := range map[string]int{"full": 1, "filling": math.MaxInt32} {
		b.Run("bucket="+name, func(b *testing.B) {
			bucket := decision.NewBucket(0.1, 10, burst, clock.New())
			if name == "filling" {
				for range 1 << 20 {
					bucket.Withdraw()
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				bucket.Deposit()
			}
		})
	}
}
