package postgres

import (
	"fmt"
	"log/slog"
	"math"

	"github.com/weirflow/weir/internal/guard"
)

// Option is a setting of [Open] and [New]. The last option of a kind counts.
type Option func(*settings)

type settings struct {
	connections       int
	withoutMigrations bool
	logger            *slog.Logger
}

func newSettings(function string, opts []Option) settings {
	s := settings{connections: 6, logger: guard.Logger(nil)}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("postgres: %s: option %d is nil", function, i+1))
		}
		opt(&s)
	}
	return s
}

// WithConnections sets how many connections a process has for its statements, 6 by
// default. One more listens while there are workers. Up to a third of the n connections
// put at the same time, and up to a third settle. pool_max_conns in the URL of [Open], or
// the pool of [New], decides the size of the pool instead. WithConnections panics if n is
// less than 1 or above 2,147,483,647.
func WithConnections(n int) Option {
	if n < 1 || n > math.MaxInt32 {
		panic(fmt.Sprintf("postgres: WithConnections: %d is not from 1 to %d", n, math.MaxInt32))
	}
	return func(s *settings) { s.connections = n }
}

// WithoutMigrations keeps [Open] from making or changing tables, for programs that run
// [Engine.Migrations] with their own tool. By default Open makes missing tables, and
// updates tables of an older version.
func WithoutMigrations() Option { return func(s *settings) { s.withoutMigrations = true } }

// WithLogger sets the logger of the engine. The default is slog.Default(). It panics if l
// is nil.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("postgres: WithLogger", "logger", l)
	return func(s *settings) { s.logger = guard.Logger(l) }
}
