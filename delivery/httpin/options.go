package httpin

import (
	"fmt"
	"log/slog"

	"github.com/weirflow/weir/internal/guard"
)

// Option is a setting of [NewHandler]. Of several options of a kind the last one counts.
type Option func(*settings)

// settings are set by the options of a handler.
type settings struct {
	maxBytes int64
	logger   *slog.Logger
}

func newSettings(opts []Option) settings {
	s := settings{maxBytes: 1 << 20, logger: guard.Logger(nil)}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("httpin: NewHandler: option %d is nil", i+1))
		}
		opt(&s)
	}
	return s
}

// WithMaxBytes bounds the body of a request to n bytes. The default is 1 MiB. It panics
// if n is less than 1.
func WithMaxBytes(n int64) Option {
	if n < 1 {
		panic(fmt.Sprintf("httpin: WithMaxBytes: %d is less than 1", n))
	}
	return func(s *settings) { s.maxBytes = n }
}

// WithLogger sets the logger for failures. The default is slog.Default(). It panics if l
// is nil.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("httpin: WithLogger", "logger", l)
	return func(s *settings) { s.logger = guard.Logger(l) }
}
