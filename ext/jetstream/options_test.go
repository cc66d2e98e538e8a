package jetstream

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// An option with a wrong argument panics where it is written, with its name and the
// value.
func TestOptions_WrongArguments(t *testing.T) {
	for want, f := range map[string]func(){
		`jetstream: WithStream: "a.b" is not a valid name of a stream: it must not be empty, or have a dot, a space, a wildcard or a slash`: func() {
			WithStream("a.b")
		},
		"jetstream: WithReplicas: 0 is less than 1": func() { WithReplicas(0) },
		"jetstream: WithStreamConfig: nil function": func() { WithStreamConfig(nil) },
		"jetstream: WithLogger: nil logger":         func() { WithLogger(nil) },
		"jetstream: Open: option 1 is nil":          func() { _, _ = Open(t.Context(), "", nil) },
	} {
		require.PanicsWithValue(t, want, f)
	}
	require.Panics(t, func() { WithStream("") })
}

func TestOptions_SeveralOfAKind(t *testing.T) {
	s := newSettings("Open", []Option{
		WithStream("a"), WithStream("b"), WithReplicas(3), WithNATSOptions(nats.Name("a")), WithNATSOptions(nats.Name("b"), nats.NoEcho()),
		WithStreamConfig(func(c *jetstream.StreamConfig) { c.MaxBytes = 1 }),
	})
	require.Equal(t, "b", s.stream)
	require.Equal(t, 3, s.replicas)
	require.Len(t, s.connection, 3)
	require.NotNil(t, s.change)
	require.False(t, s.existingStream)
	s = newSettings("New", []Option{WithExistingStream()})
	require.Equal(t, "weir", s.stream)
	require.Equal(t, 1, s.replicas)
	require.True(t, s.existingStream)
}
