package jetstream

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/internal/guard"
)

// Option is a setting of [Open] and [New]. The last of several options of a kind counts,
// but the options of several [WithNATSOptions] are joined.
type Option func(*settings)

type settings struct {
	stream         string
	replicas       int
	change         func(c *jetstream.StreamConfig) // nil for the config of StreamConfig
	existingStream bool
	connection     []nats.Option
	logger         *slog.Logger
}

func newSettings(function string, opts []Option) *settings {
	s := &settings{stream: "weir", replicas: 1, logger: guard.Logger(nil)}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("jetstream: %s: option %d is nil", function, i+1))
		}
		opt(s)
	}
	return s
}

// WithStream sets the name of the stream. The default is "weir". It panics if the name is
// empty or contains a dot, a space, a wildcard or a slash.
func WithStream(name string) Option {
	if name == "" || strings.ContainsAny(name, ".*> \t\r\n/\\") {
		panic(fmt.Sprintf("jetstream: WithStream: %q is not a valid name of a stream: it must not be empty, or have a dot, a space, a wildcard or a slash", name))
	}
	return func(s *settings) { s.stream = name }
}

// WithReplicas sets the number of servers of a cluster that keep the stream. The default
// is 1. The number counts only when the stream is made. WithReplicas panics if n is less
// than 1.
func WithReplicas(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("jetstream: WithReplicas: %d is less than 1", n))
	}
	return func(s *settings) { s.replicas = n }
}

// WithStreamConfig changes the config of a new stream: MaxBytes, MaxMsgs, Placement,
// Duplicates and other fields that do not contradict [StreamConfig]. By default the
// stream has no limits. An existing stream is not changed. WithStreamConfig panics if
// change is nil.
func WithStreamConfig(change func(c *jetstream.StreamConfig)) Option {
	guard.RefuseNil("jetstream: WithStreamConfig", "function", change)
	return func(s *settings) { s.change = change }
}

// WithExistingStream makes [Open] and [New] return an error if the stream is missing,
// instead of making it. An administrator makes it, from [StreamConfig].
func WithExistingStream() Option { return func(s *settings) { s.existingStream = true } }

// WithNATSOptions adds options of the connection that [Open] makes, such as credentials
// and TLS. By default it is named "weir" and reconnects without a limit. [New] ignores
// them.
func WithNATSOptions(opts ...nats.Option) Option {
	return func(s *settings) { s.connection = append(s.connection, opts...) }
}

// WithLogger sets the logger of the engine. The default is slog.Default(). It panics if l
// is nil.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("jetstream: WithLogger", "logger", l)
	return func(s *settings) { s.logger = guard.Logger(l) }
}
