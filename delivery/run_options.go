package delivery

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// How many messages are received and put at once.
const (
	defaultBatch = 100    // of an operator that does not report its free slots
	maxReceived  = 1000   // they share a round trip, after which the operator gets them
	maxPuts      = 10_000 // they share the round trip of their acknowledgements
)

// RunOption is a setting of [Run]. Of several options of a kind the last one counts.
type RunOption interface{ applyToRun(s *runSettings) }

type runOption func(*runSettings)

func (o runOption) applyToRun(s *runSettings) { o(s) }

type runSettings struct {
	batch       int // 0 if Run chooses
	drain       time.Duration
	floodShare  float64
	floodWindow int
	monitor     *Monitor // nil if the state is not reported
	clock       clock.Clock
	logger      *slog.Logger
}

func newRunSettings(opts []RunOption) runSettings {
	s := runSettings{
		drain: 20 * time.Second, floodShare: 0.5, floodWindow: 100,
		clock: clock.New(), logger: guard.Logger(nil),
	}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("delivery: Run: option %d is nil", i+1))
		}
		opt.applyToRun(&s)
	}
	return s
}

// WithBatch sets how many messages are received, and how many results are put into the
// sink at once, at most. By default Run receives up to 1,000 at once, and puts as many as
// the operator has slots: 100 to 10,000. It panics if n is less than 1.
//
// The sink gets the results at hand, so a result does not wait for others; up to n
// results may wait for the sink. Whatever n is, Run receives only as many messages as the
// operator has free slots, and some more for the slots that become free meanwhile
// ([asyncop.AsyncWaitOperator.AwaitSlots]).
func WithBatch(n int) RunOption {
	if n < 1 {
		panic(fmt.Sprintf("delivery: WithBatch: %d is less than 1", n))
	}
	return runOption(func(s *runSettings) { s.batch = n })
}

// WithDrain sets how long Run finishes its messages after its context has ended. The
// default is 20 s. Messages that are not done then are released: with 0, all at once. It
// panics if d is negative.
func WithDrain(d time.Duration) RunOption {
	if d < 0 {
		panic(fmt.Sprintf("delivery: WithDrain: %v is negative: 0 releases all messages at once", d))
	}
	return runOption(func(s *runSettings) { s.drain = d })
}

// WithFloodGuard sets when Run stops receiving: when more than this share of the last
// window new messages has failed. The default is half (0.5) of the last 100. So an outage
// leaves the messages in the queue, and does not fill the dead letters (law D5). Messages
// in the operator are still processed, and may fail as well. A share of 1 turns the flood
// guard off. Run logs each stop, each probe and why it resumes.
//
// A message has failed if it was settled as [message.HandedOver] or [message.Failed], or
// if the codec of its queue cannot decode it. Five kinds of messages do not count as
// failed:
//
//   - a message whose retry succeeded
//   - a message that was refused for good, by a rejection (asyncop.Failure.Reason) or by
//     [message.Message.Reject], since the service answers
//   - a message that has failed in an earlier visit, and comes from a layer
//   - a message whose tenant is down, since others may be up
//   - a released message, for instance a snoozed one
//
// If messages have keys, Run also judges the keys, since a key is often a customer. A key
// has failed if more than the share of its messages has failed. Run stops only if at least
// two keys, and more than the share of the keys in the window, have failed as well. So one
// customer whose messages all fail never stops the others. A message without a key counts
// as a key of its own.
//
// A whole window may have one key. If it fails, Run stops when the next window with one
// key has another key, and fails as well. If all messages have the same key, the guard
// never stops the worker: use a backend (asyncop.WithBackend) there.
//
// A second after a stop, Run receives a probe: a tenth of the window, by default ten
// messages. If enough of them, or of their keys, are answered, Run resumes. If not, the
// next probe follows after two seconds, then after four, and then every five seconds. So
// by default an outage of an hour costs some 7,000 failed visits, and messages wait for up
// to five seconds after its end.
//
// If all messages of the probes have one key, and most fail, other keys may be up. So Run
// also resumes after a whole window of such messages. By default it does so after ten
// probes, with pauses of 42 s in all, or of 50 s if Run has stopped shortly before. It
// takes longer if Receive returns fewer messages, as with WithFairByKey.
//
// If hundreds of messages of a key follow each other, Run resumes about once a minute in
// an outage. The outage then costs about twice as many failed visits. In addition, as many
// visits as the operator has slots fail each time Run resumes.
//
// A worker with the wrong type cannot decode its messages, and makes dead letters of them.
// The guard stops it before it has done so with all messages. After that each probe makes
// some dead letters.
//
// To Run, a batch of bad messages whose error is unknown looks like an outage: it passes
// with two messages a second. Let the function name the errors that are permanent.
//
// WithFloodGuard panics if the share is not above 0 and at most 1, or the window is less
// than 1.
func WithFloodGuard(share float64, window int) RunOption {
	if !(share > 0 && share <= 1) || window < 1 {
		panic(fmt.Sprintf("delivery: WithFloodGuard: a share of %v of a window of %d: want a share above 0 and at most 1, and a window of at least 1",
			share, window))
	}
	return runOption(func(s *runSettings) { s.floodShare, s.floodWindow = share, window })
}

// WithMonitor makes m report the state of Run. It panics if m is nil, and Run panics if
// another Run has m.
func WithMonitor(m *Monitor) RunOption {
	guard.RefuseNil("delivery: WithMonitor", "monitor", m)
	return runOption(func(s *runSettings) { s.monitor = m })
}
