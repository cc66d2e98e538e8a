package store

import (
	"sync"
	"time"
)

// tasks runs functions later or beside, and knows how to end: after stop none
// starts and none runs. Safe for concurrent use; the zero value is ready.
type tasks struct {
	mu      sync.Mutex
	wg      sync.WaitGroup // one for each armed timer and each running function
	timers  map[*time.Timer]struct{}
	stopped bool
}

// start runs f on a goroutine of its own.
func (t *tasks) start(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.wg.Go(f)
	}
}

// after runs f on a goroutine of its own once d has passed.
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

// stop disarms what has not fired and waits for what runs.
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
