package jetstream

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigThatIsRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"replicas": {Replicas: -1},
		"name":     {Stream: "a.b"},
	} {
		require.Panics(t, func() { configOf([]Config{c}) }, name)
	}
	c := configOf([]Config{{Stream: "a"}, {Replicas: 3}})
	require.Equal(t, "a", c.Stream)
	require.Equal(t, 3, c.Replicas)
}
