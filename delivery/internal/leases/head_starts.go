package leases

import (
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
)

// HeadStarts gives suspects a head start, one after the other. A suspect is a message
// whose lease has ended: it may have killed its process, and messages beside it would be
// lost with it (law D4). Until the suspect is settled, at most for a set time, no source
// begins to take other messages. A source that was already taking messages releases the
// suspects among them, and delivers the others. Messages in flight continue. The sources
// of a queue and its layers share a HeadStarts. Safe for concurrent use.
type HeadStarts struct {
	mu      sync.Mutex // guards the fields below
	suspect suspect    // has the head start, or zero
	until   time.Time  // latest end of the head start
	waiting map[chan struct{}]bool
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

// watch returns how long no message may be taken: 0 without a head start. Otherwise end
// sends to wake if the head start ends earlier.
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

// end ends the head start of a message that was settled, if any.
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
