package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// Summary counts the messages that [Run] has received, by settlement. Received is the sum
// of Done, HandedOver, Rejected, Failed, Released and Purged: a message that was
// delivered twice counts twice. The JSON of a Summary is part of the stored report of a
// worker, so it keeps the names that other versions read.
type Summary struct {
	Received   int
	Done       int           `json:"Acknowledged"` // the sink has its results, if any
	HandedOver int           // failed, and taken by the failure sink or dropped by the failure policy
	Rejected   int           // not done, and not redelivered: refused, or cannot be decoded
	Failed     int           `json:"Nacked"`    // failed, and redelivered
	Released   int           `json:"GivenBack"` // snoozed, or not done at the end or while a backend was down; redelivered
	Purged     int           // purged in flight; their failures and results are not stored
	Floods     int           // stops by the flood guard: see [WithFloodGuard]
	Elapsed    time.Duration // of Run, without its wait for calls after their end
}

func (s *Summary) add(kind message.Kind, isPurged bool) {
	if isPurged { // its settlement has no effect
		s.Purged++
		return
	}
	switch kind {
	case message.Done:
		s.Done++
	case message.HandedOver:
		s.HandedOver++
	case message.Rejected:
		s.Rejected++
	case message.Failed:
		s.Failed++
	case message.Released:
		s.Released++
	}
}

// LogValue makes slog write the numbers as a group.
func (s Summary) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Int("received", s.Received), slog.Int("done", s.Done), slog.Int("handed_over", s.HandedOver),
		slog.Int("rejected", s.Rejected), slog.Int("failed", s.Failed), slog.Int("released", s.Released),
		slog.Int("purged", s.Purged), slog.Int("floods", s.Floods), slog.Duration("elapsed", s.Elapsed),
	)
}

// String returns the numbers in words.
func (s Summary) String() string {
	text := fmt.Sprintf("received %d in %v: done %d, handed over %d, rejected %d, failed %d, released %d",
		s.Received, s.Elapsed.Round(time.Millisecond), s.Done, s.HandedOver, s.Rejected, s.Failed, s.Released)
	if s.Purged > 0 {
		text += fmt.Sprintf(", purged %d", s.Purged)
	}
	return text + fmt.Sprintf("; %d floods", s.Floods)
}

// LogValue returns the state and the numbers.
func (s Status) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("state", s.State), slog.Any("error", s.Err), slog.Int("in_flight", s.InFlight), slog.Int("redelivered", s.Redelivered),
		slog.Int("leases_lost", s.LeasesLost), slog.Int("settlements_refused", s.SettlementsRefused), slog.Duration("clock_offset", s.ClockOffset), slog.Any("messages", s.Summary),
	)
}

// String returns the state and the numbers in words.
func (s Status) String() string {
	text := fmt.Sprintf("%s: %v; %d in flight, %d redelivered, %d leases lost", s.State, s.Summary, s.InFlight, s.Redelivered, s.LeasesLost)
	if s.SettlementsRefused > 0 {
		text += fmt.Sprintf(", %d settlements refused", s.SettlementsRefused)
	}
	if s.Err != nil {
		text += "; " + guard.Text(s.Err)
	}
	return text
}

// tally counts messages until they are settled.
type tally struct {
	mu      sync.Mutex // guards the fields below; held briefly, as Settle is called on an operator's loop
	counts  Summary
	settled int
	flood   flood

	endReceive context.CancelCauseFunc // of the Receive that runs, or nil
	isProbing  bool                    // the Receive that runs is for a probe

	redelivered int                   // see Status.Redelivered
	offsets     []time.Duration       // of the engines' clocks from the machine's clock
	leases      settle.LeaseCounter   // the source; nil if it does not count them
	refusals    settle.RefusalCounter // the source; nil if it does not count them
	hasAsked    bool                  // Receive was called
	askedAt     time.Time             // when the running Receive was called, or zero
	failing     error                 // error of the last Receive that has returned, or nil
}

// watchReceived replaces received messages by messages whose settlements are counted. It
// sends the end of each message to ended, unless that is nil. ended has room for all.
func watchReceived[T any](t *tally, ms []message.Message[T], ended chan<- probeEnd) []message.Message[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Received += len(ms)
	watched := make([]message.Message[T], len(ms))
	for i, m := range ms {
		hasFailedBefore := m.Meta().Visit > 1
		if hasFailedBefore {
			t.redelivered++
		}
		key := m.Meta().Key
		c := t.flood.receive(key, hasFailedBefore)
		watched[i] = message.Watch(m, func(v message.Settlement) {
			isPurged := m.IsPurged()
			m.Settle(v)
			e := evidenceOf(v, hasFailedBefore)
			if isPurged {
				e = noEvidence
			}
			t.count(v, isPurged, c, e)
			if ended != nil {
				ended <- probeEnd{key, e}
			}
		})
	}
	return watched
}

func (t *tally) count(v message.Settlement, isPurged bool, c countedIn, e evidence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled++
	t.counts.add(v.Kind, isPurged)
	if t.flood.note(c, e, v.Err) {
		t.counts.Floods++
	}
}

// noteRejected counts a message that the source rejects itself, before Receive returns
// it. It returns false if the flood guard has stopped the worker, so that the message
// stays in its queue. Receive then ends, and so does the Receive of a probe.
func (t *tally) noteRejected(meta message.Meta, err error) (rejects bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.endIfStopped()
	if t.flood.stopped && !t.isProbing {
		return false
	}
	again := meta.Visit > 1
	e := noEvidence
	if settle.IsUnreadable(err) && !again {
		e = unanswered
	}
	if again {
		t.redelivered++
	}
	t.counts.Received++
	t.counts.Rejected++
	t.settled++
	if t.flood.note(t.flood.receive(meta.Key, again), e, err) {
		t.counts.Floods++
	}
	if t.isProbing {
		t.flood.noteProbe(meta.Key, e)
	}
	return true
}

// endIfStopped ends the Receive that runs, if the flood guard has stopped the worker.
// Called with mu held.
func (t *tally) endIfStopped() {
	if t.flood.stopped && t.endReceive != nil {
		t.endReceive(errFlooded)
	}
}

// beginReceive notes a Receive that noteRejected may end, and returns a function for its
// end.
func (t *tally) beginReceive(end context.CancelCauseFunc, isProbe bool) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endReceive, t.isProbing = end, isProbe
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.endReceive, t.isProbing = nil, false
	}
}

func (t *tally) unsettled() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts.Received - t.settled
}

// sum returns the summary at the end. Messages that are not settled count as released,
// since Close of the source has released them.
func (t *tally) sum(elapsed time.Duration) Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.counts
	s.Released += s.Received - t.settled
	s.Elapsed = elapsed
	return s
}

func (t *tally) noteAsked(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hasAsked = true
	t.askedAt = now
}

func (t *tally) noteReceiveReturned(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failing = err
	t.askedAt = time.Time{}
}
