package counting_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/counting"
)

func TestLines(t *testing.T) {
	l := counting.NewLines[string](10*time.Second, 2)
	var written []string
	fail := func(key string, second int) {
		if l.Begin(key, time.Duration(second)*time.Second, func(more int) { written = append(written, fmt.Sprint(key, " and ", more)) }) {
			written = append(written, key)
		}
	}
	check := func(want ...string) {
		t.Helper()
		require.Equal(t, want, written)
		written = nil
	}
	_, due := l.Due()
	require.False(t, due)
	fail("a", 0)
	fail("b", 1)
	check("a", "b")
	_, due = l.Due()
	require.False(t, due, "nothing was counted")
	fail("b", 2)
	fail("a", 3)
	fail("a", 4)
	check()
	at, due := l.Due()
	require.True(t, due)
	require.Equal(t, 10*time.Second, at)
	l.Flush(10*time.Second-1, false)
	check()
	l.Flush(10*time.Second, false)
	check("a and 2")
	fail("a", 19)
	fail("a", 21) // the line about the failure at 19 is due
	check("a and 1")
	l.Flush(22*time.Second, true)
	check("a and 1", "b and 1")
	fail("a", 40)
	check("a")
}

func TestLinesHasRoom(t *testing.T) {
	l := counting.NewLines[string](10*time.Second, 2)
	rest := func(int) {}
	l.Begin("a", 0, rest)
	l.Begin("b", 0, rest)
	l.Begin("b", 1, rest)
	require.True(t, l.HasRoom("a", 2))
	require.False(t, l.HasRoom("c", 2))
	require.True(t, l.HasRoom("c", 10*time.Second), "a is over")
	l.Begin("c", 10*time.Second, rest)
	require.False(t, l.HasRoom("a", 10*time.Second), "b has a line to be written")
}
