package jetstream

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigThatIsRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"replicas":         {Replicas: -1},
		"name":             {Stream: "a.b"},
		"foreign, queue":   {Foreign: map[string]Foreign{"": {Stream: "orders"}}},
		"foreign, nowhere": {Foreign: map[string]Foreign{"q": {}}},
	} {
		require.Panics(t, func() { configOf([]Config{c}) }, name)
	}
	c := configOf([]Config{{Stream: "a", Foreign: map[string]Foreign{"q": {Stream: "orders"}}}, {Replicas: 3, Foreign: map[string]Foreign{"r": {Stream: "done"}}}})
	require.Equal(t, "a", c.Stream)
	require.Equal(t, 3, c.Replicas)
	require.Len(t, c.Foreign, 2)
}
