package store

import (
	"sync"
	"time"
)

// tasks runs functions later or in the background. After stop, none of them starts or is
// running. It is safe for concurrent use; the zero value is ready.
type tasks struct {
	mu      sync.Mutex
	wg      sync.WaitGroup // counts armed timers and running functions
	timers  map[*time.Timer]struct{}
	stopped bool
}

func (t *tasks) start(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.wg.Go(f)
	}
}

func (t *tasks) after(d time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	if t.timers == nil {
		t.timers = make(map[*time.Timer]struct{})
	}
	t.wg.Add(1)
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		defer t.wg.Done()
		t.mu.Lock() // held by after until timer is set
		delete(t.timers, timer)
		t.mu.Unlock()
		f()
	})
	t.timers[timer] = struct{}{}
}

// stop cancels pending timers and waits for running functions.
func (t *tasks) stop() {
	t.mu.Lock()
	t.stopped = true
	for timer := range t.timers {
		if timer.Stop() {
			t.wg.Done()
		}
	}
	clear(t.timers)
	t.mu.Unlock()
	t.wg.Wait()
}
