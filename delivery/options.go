package delivery

import (
	"log/slog"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// Option is a setting of both [NewQueue] and [Run].
type Option interface {
	QueueOption
	RunOption
}

type option struct {
	queue queueOption
	run   runOption
}

func (o option) applyToQueue(s *queueSettings) { o.queue(s) }
func (o option) applyToRun(s *runSettings)     { o.run(s) }

// WithClock sets the clock of a queue or of [Run]. A queue uses it for leases, rates,
// [At] and the times of failures, and Run for its waits. The default is the machine's
// clock. The engine's clock decides when a message is due. WithClock panics if c is nil.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("delivery: WithClock", "clock", c)
	return option{
		queue: func(s *queueSettings) { s.clock = c },
		run:   func(s *runSettings) { s.clock = c },
	}
}

// WithLogger sets the logger of a queue or of [Run]. The default is slog.Default(). It
// panics if l is nil.
//
// A queue logs lost leases, dead letters, and settlements that it tries to record again,
// at warn level, a message that cannot be settled at error level, and purges of messages
// in flight at info level. Run logs failures and the flood guard at warn level, and the
// start of a drain and its [Summary] at info level.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("delivery: WithLogger", "logger", l)
	safe := guard.Logger(l)
	return option{
		queue: func(s *queueSettings) { s.logger = safe },
		run:   func(s *runSettings) { s.logger = safe },
	}
}
