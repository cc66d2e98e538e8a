package httpin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is remembered is bounded, and the oldest goes first.
func TestMemoryIsBounded(t *testing.T) {
	m := memory{limit: 3}
	key := func(i int) hash { return hashOf(fmt.Sprint(i)) }
	for i := range 10 {
		other, safe := m.begin(key(i), hashOf("first"))
		require.False(t, other || safe)
		m.stored(key(i))
		require.LessOrEqual(t, len(m.seen), 3)
		require.LessOrEqual(t, len(m.order), 3)
	}
	for i := 7; i < 10; i++ {
		other, safe := m.begin(key(i), hashOf("second"))
		require.True(t, other && safe)
	}
	other, safe := m.begin(key(6), hashOf("second"))
	require.False(t, other || safe, "it is forgotten")
	m.stored(key(5))
	require.NotEqual(t, hashOf("a", "b"), hashOf("ab"))
	require.NotEqual(t, hashOf("a", "b"), hashOf("b", "a"))
}
