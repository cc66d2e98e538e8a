package sqlite

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// Option is a setting of [Open], [OpenDB] and [New]. The last option of a kind counts.
type Option func(*settings)

type settings struct {
	readers           int
	synchronousNormal bool
	readOnly          bool
	busyTimeout       time.Duration
	withoutMigrations bool
	clock             clock.Clock // nil for the machine's
	logger            *slog.Logger
}

func newSettings(function string, opts []Option) settings {
	s := settings{readers: 4, busyTimeout: 10 * time.Second, logger: guard.Logger(nil)}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("sqlite: %s: option %d is nil", function, i+1))
		}
		opt(&s)
	}
	return s
}

// WithReaders sets the number of connections that read at the same time. The default is
// 4. [New] ignores it. WithReaders panics if n is less than 1.
func WithReaders(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("sqlite: WithReaders: %d is less than 1", n))
	}
	return func(s *settings) { s.readers = n }
}

// WithSynchronousNormal makes commits cheaper, as they do not wait for the disk. A power
// cut may lose the last commits, but does not damage the database. By default synchronous
// is FULL. [New] ignores it.
func WithSynchronousNormal() Option { return func(s *settings) { s.synchronousNormal = true } }

// WithReadOnly opens an existing file that this process may not write. Writes fail. If no
// program has the file open, no program may change it until Close. By default the file is
// opened for writing, and made if it is missing. [New] ignores it.
func WithReadOnly() Option { return func(s *settings) { s.readOnly = true } }

// WithBusyTimeout sets how long a call waits while another process writes, unless its
// context ends first. The default is 10 s. It is rounded up to a millisecond. [New]
// ignores it. WithBusyTimeout panics if d is not positive.
func WithBusyTimeout(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("sqlite: WithBusyTimeout: %v is not positive", d))
	}
	return func(s *settings) { s.busyTimeout = d }
}

// WithoutMigrations keeps [Open] from making or changing tables, for programs that run
// [Engine.Migrations] with their own tool. By default Open makes missing tables, and
// updates tables of an older version.
func WithoutMigrations() Option { return func(s *settings) { s.withoutMigrations = true } }

// WithClock sets the clock of an [Engine], which decides when messages are due and leases
// end. Consumers then poll every 100 ms, since the clock may jump while timers do not.
// The default is the machine's clock. [OpenDB] ignores it. WithClock panics if c is nil.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("sqlite: WithClock", "clock", c)
	return func(s *settings) { s.clock = c }
}

// WithLogger sets the logger of an [Engine]. The default is slog.Default(). [OpenDB]
// ignores it. WithLogger panics if l is nil.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("sqlite: WithLogger", "logger", l)
	return func(s *settings) { s.logger = guard.Logger(l) }
}
