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
		require.NotNil(t, m.begin(key(i), hashOf("first")))
		require.LessOrEqual(t, len(m.seen), 3)
		require.LessOrEqual(t, len(m.order), 3)
	}
	for i := 7; i < 10; i++ {
		require.Nil(t, m.begin(key(i), hashOf("second")))
		require.Same(t, m.begin(key(i), hashOf("first")), m.begin(key(i), hashOf("first")))
	}
	require.NotNil(t, m.begin(key(6), hashOf("second")), "it is forgotten")
	require.NotEqual(t, hashOf("a", "b"), hashOf("ab"))
	require.NotEqual(t, hashOf("a", "b"), hashOf("b", "a"))
}
