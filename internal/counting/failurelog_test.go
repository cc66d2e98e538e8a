package counting_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/counting"
)

func TestFailureLog(t *testing.T) {
	var b bytes.Buffer
	handler := slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	c := clock.NewMock()
	f := counting.NewFailureLog(slog.New(handler), c, "cannot listen", "queue", "q")
	check := func(want ...string) {
		t.Helper()
		require.Equal(t, want, strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n"))
		b.Reset()
	}
	for n := range 61 {
		f.Add(fmt.Errorf("refused by 10.0.0.%d", n))
		c.Add(time.Second)
	}
	check(`level=WARN msg="cannot listen" queue=q error="refused by 10.0.0.0"`,
		`level=WARN msg="cannot listen" queue=q error="refused by 10.0.0.59" failures=59`)
	f.Add(errors.New("no such queue"))
	check(`level=WARN msg="cannot listen" queue=q error="no such queue"`)
	f.Flush()
	check(`level=WARN msg="cannot listen" queue=q error="refused by 10.0.0.60" failures=1`)
	f.Flush()
	require.Empty(t, b.String())
}

// A line has the attributes of its failure, or of the last of several failures.
func TestFailureLogDue(t *testing.T) {
	var b bytes.Buffer
	c := clock.NewMock()
	f := counting.NewFailureLog(slog.New(slog.NewTextHandler(&b, nil)), c, "cannot listen")
	f.Add(errors.New("refused"), "id", "a")
	require.Contains(t, b.String(), "error=refused id=a")
	_, isDue := f.Due()
	require.False(t, isDue, "the failure has a line")
	c.Add(20 * time.Second)
	f.Add(errors.New("refused"), "id", "b")
	f.Add(errors.New("refused"), "id", "c")
	wait, isDue := f.Due()
	require.True(t, isDue)
	require.Equal(t, 40*time.Second, wait)
	c.Add(wait)
	f.FlushDue()
	require.Contains(t, b.String(), "error=refused id=c failures=2")
}

// The failures have their line a minute later if the action works again.
func TestFailureLogFlushDue(t *testing.T) {
	var b bytes.Buffer
	c := clock.NewMock()
	f := counting.NewFailureLog(slog.New(slog.NewTextHandler(&b, nil)), c, "cannot listen")
	for range 3 {
		f.Add(errors.New("refused"))
	}
	c.Add(59 * time.Second)
	f.FlushDue()
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
	c.Add(time.Second)
	f.FlushDue()
	require.Contains(t, b.String(), "error=refused failures=2")
	f.FlushDue()
	f.Flush()
	require.Equal(t, 2, strings.Count(b.String(), "\n"))
}

// Failures that are all different have a bounded number of lines.
func TestFailureLog_ManyGroups(t *testing.T) {
	var b bytes.Buffer
	f := counting.NewFailureLog(slog.New(slog.NewTextHandler(&b, nil)), clock.NewMock(), "cannot listen")
	for n := range 1000 {
		f.Add(errors.New("no user " + string([]rune{'a' + rune(n%26), 'a' + rune(n/26%26), 'a' + rune(n/26/26)})))
	}
	f.Flush()
	require.Equal(t, 12, strings.Count(b.String(), "\n"), "ten groups, the first of the others, and their number")
	require.Contains(t, b.String(), "failures=989")
}

// Groups of failures that have ended make room, even if FlushDue is not called.
func TestFailureLogAdd_GroupsThatHaveEnded(t *testing.T) {
	var b bytes.Buffer
	c := clock.NewMock()
	f := counting.NewFailureLog(slog.New(slog.NewTextHandler(&b, nil)), c, "cannot listen")
	for _, kind := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		f.Add(errors.New("kind " + kind))
		f.Add(errors.New("kind " + kind))
	}
	b.Reset()
	c.Add(240 * time.Hour)
	f.Add(errors.New("disk full"))
	require.Equal(t, 10, strings.Count(b.String(), "failures=1"))
	require.Equal(t, 1, strings.Count(b.String(), "disk full"))
	f.Add(errors.New("permission denied"))
	require.Contains(t, b.String(), "permission denied", "it has a group of its own")
	b.Reset()
	f.Add(errors.New("permission denied"))
	f.Add(errors.New("disk full"))
	require.Empty(t, b.String())
}
