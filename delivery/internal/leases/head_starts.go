package leases

import (
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
)

// HeadStarts gives suspects a head start, one after the other. A suspect is a message
// whose lease has ended before it was settled. It may have killed its process, and may
// kill the next one, with the messages beside it (law D4).
//
// A head start lasts until the suspect is settled, but not longer than a set time.
// Meanwhile no source begins to take other messages. Messages in flight continue. A
// source that was already taking messages delivers them, except for suspects, which it
// releases.
//
// The sources of a queue and its layers share a HeadStarts. Safe for concurrent use.
type HeadStarts struct {
	mu      sync.Mutex             // guards the fields below
	suspect suspect                // has the head start, or zero
	until   time.Time              // latest end of the head start
	waiting map[chan struct{}]bool // wake channels of the sources that wait for its end
}

type suspect struct{ queue, entry string }

func suspectOf(l store.Lease, queue string) suspect { return suspect{queue, l.Entry} }

// NewHeadStarts returns a HeadStarts without a suspect.
func NewHeadStarts() *HeadStarts { return &HeadStarts{waiting: map[chan struct{}]bool{}} }

// WithHeadStarts makes sources share head starts. By default a source has its own.
func WithHeadStarts(h *HeadStarts) SourceOption {
	return func(set *sourceSettings) { set.headStarts = h }
}

// begin gives s a head start. It returns false while another message has one.
func (h *HeadStarts) begin(s suspect, now time.Time, d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isRunning(now) {
		return false
	}
	h.suspect = s
	h.until = now.Add(d)
	return true
}

// watch returns how long no message may be taken. It is 0 without a head start. If the
// head start ends earlier, end sends to wake.
func (h *HeadStarts) watch(now time.Time, wake chan struct{}) (left time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.isRunning(now) {
		return 0
	}
	h.waiting[wake] = true
	return h.until.Sub(now)
}

func (h *HeadStarts) isRunning(now time.Time) bool {
	return h.suspect != suspect{} && h.until.After(now)
}

// end ends the head start of a message that was settled. It has no effect if the message
// does not have the head start.
func (h *HeadStarts) end(s suspect) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.suspect != s {
		return
	}
	h.suspect = suspect{}
	for wake := range h.waiting {
		settle.Wake(wake)
	}
	clear(h.waiting)
}
