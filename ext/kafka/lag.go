package kafka

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

const (
	lagEach = 15 * time.Second // between requests for the end of a partition
	lagWait = 5 * time.Second  // for the answer
)

// lag is how far an input's position is behind the end of its partition. Safe for
// concurrent use.
type lag struct {
	asks sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	at     int64
	end    int64     // behind the last committed record, as far as known
	known  time.Time // when end was last read from the brokers
	asking bool
	closed bool
}

func (l *lag) move(at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = at
}

func (l *lag) know(end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end, l.known = max(l.end, end), clock.New().Now()
}

// now returns the lag. If end is older than lagEach, it starts ask on a goroutine to
// update it.
func (l *lag) now(ask func()) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := clock.New().Now(); !l.asking && !l.closed && now.Sub(l.known) >= lagEach {
		l.asking, l.known = true, now // known is set even if ask fails: no retry at once
		l.asks.Go(func() {            // ends with ask
			ask()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.asking = false
		})
	}
	return max(0, l.end-l.at)
}

// close waits until ask has returned, and prevents further calls.
func (l *lag) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.asks.Wait()
}
