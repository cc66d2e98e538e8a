package delivery

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// RunOption changes a setting of [Run].
type RunOption interface{ run(s *runSettings) }

type runOption func(*runSettings)

func (f runOption) run(s *runSettings) { f(s) }

// shared is an option of queues and of Run.
type shared struct {
	queueOption
	runOption
}

// How many messages are received and put at once.
const (
	defaultBatch = 100
	maxPuts      = 10_000 // the acknowledgement of a put costs a journey to the engine, which many share
)

type runSettings struct {
	batch  int // as received
	puts   int // as put; 0: as many as the operator has slots, within limits
	drain  time.Duration
	share  float64
	window int
	clock  clock.Clock
	logger *slog.Logger

	monitor *Monitor // nil: there is none
}

func newRunSettings(opts []RunOption) runSettings {
	s := runSettings{
		batch: defaultBatch, drain: 20 * time.Second, share: 0.5, window: 100, clock: clock.New(), logger: slog.Default(),
	}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("delivery: Run: option %d is nil", i))
		}
		opt.run(&s)
	}
	return s
}

// WithBatch sets how many messages are received at once, and how many results are put into the sink at once, at most. By default Run receives 100
// at once, and puts as many as the operator has slots: 100 to 10,000. The sink gets the results at hand, so a result does not wait for others;
// as many results may wait for the sink. Run receives only as many messages as the operator has free slots, so a worker does not keep messages from
// others that it cannot process. It panics if n < 1.
func WithBatch(n int) RunOption {
	if n < 1 {
		panic(fmt.Sprintf("delivery: WithBatch: %d, want 1 or more", n))
	}
	return runOption(func(s *runSettings) { s.batch, s.puts = n, n })
}

// WithDrain sets how long [Run] finishes its messages after its context has ended; the default is 20 s. Messages that are not done then are
// given back. With 0 all are given back at once. It panics if d < 0.
func WithDrain(d time.Duration) RunOption {
	if d < 0 {
		panic(fmt.Sprintf("delivery: WithDrain: %v is negative", d))
	}
	return runOption(func(s *runSettings) { s.drain = d })
}

// WithFloodGuard sets when [Run] stops receiving: when more than this share of the last new messages has failed; the default is half of the last
// 100. So an outage leaves the messages in the queue, and does not fill the dead letters (law D5). Messages in the operator are still processed,
// and may fail as well.
//
// A message has failed if it was handed over to the failure sink, dropped by the failure policy, or nacked with a delay. Three kinds of messages
// do not count as failed, since they show that the service answers, or are not evidence about it: a message whose retry succeeded; a message
// that was refused for good, by a rejection ([predicates.NewRejection]) or by [message.Message.Reject]; and a message that has failed before, and comes
// from a layer.
//
// After a second Run receives a tenth of the window: ten messages. If enough of them are answered, it resumes; if not, it tries again after two
// seconds, four, and then each five seconds. It logs both. So an outage of an hour costs some 7,000 failed visits, and messages wait for up to
// five seconds after it. Run cannot tell an outage from a batch of bad messages whose error is unknown: such a batch passes with two messages a
// second. Let the function name the errors that are permanent.
//
// A share of 1 turns the guard off. It panics if share is not above 0 and at most 1, or window < 1.
func WithFloodGuard(share float64, window int) RunOption {
	if !(share > 0 && share <= 1) || window < 1 {
		panic(fmt.Sprintf("delivery: WithFloodGuard: share %v, window %d: want a share above 0 and up to 1, and a window of 1 or more", share, window))
	}
	return runOption(func(s *runSettings) { s.share, s.window = share, window })
}

// WithClock sets the clock of the waits of [Run], or of a queue: its leases, rates and the times of failures. The default is the machine's. The
// engine's clock decides when a message is due. It panics if c is nil.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("delivery: WithClock", "clock", c)
	return shared{func(s *queueSettings) { s.clock = c }, func(s *runSettings) { s.clock = c }}
}

// WithLogger sets the logger of [Run] or of a queue; the default is slog.Default(). Run logs failures and the flood guard at warn level, and the
// start of a drain and its [Summary] at the end at info level. A queue logs lost leases, dead letters, and verdicts that could not be recorded at warn level. It panics if l
// is nil.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("delivery: WithLogger", "logger", l)
	return shared{func(s *queueSettings) { s.logger = l }, func(s *runSettings) { s.logger = l }}
}
