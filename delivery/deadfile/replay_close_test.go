package deadfile

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/testing/crashfs"
)

// Law D1: a Replay that is closed while Receive takes the last messages keeps them, since nobody has acknowledged them.
func TestCloseDuringReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := crashfs.New()
		reopen := func() *File[string] {
			f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
			require.NoError(t, err)
			return f
		}
		f := reopen()
		require.NoError(t, f.Append(t.Context(), entry("a"), entry("b")))
		r, err := f.replay()
		require.NoError(t, err)
		ms, err := r.Receive(t.Context(), 1)
		require.NoError(t, err)
		ms[0].Nack(0)
		synctest.Wait()
		r.source.Wait = func(item[string]) time.Duration { // Receive has a, which came again, and b
			require.NoError(t, r.Close(context.Background()))
			return 0
		}
		ms, err = r.Receive(t.Context(), 2)
		require.NoError(t, err)
		require.Len(t, ms, 2)
		for _, m := range ms {
			m.Ack() // too late
		}
		require.NoError(t, r.Close(t.Context()))
		require.NoError(t, f.Close())
		f = reopen()
		require.Equal(t, []string{"a", "b"}, replayed(t, f))
		require.NoError(t, f.Close())
	})
}

// calling is a clock that calls a function once when it is read.
type calling struct {
	clock.Clock
	once func()
}

func (c *calling) Now() time.Time {
	if f := c.once; f != nil {
		c.once = nil
		f()
	}
	return c.Clock.Now()
}

// Law D1: a message that is being rejected while its Replay is closed is not removed before it is a dead letter again.
func TestCloseDuringReject(t *testing.T) {
	dir := t.TempDir()
	c := &calling{Clock: clock.New()}
	f, err := openWith(dir, codec.JSON[string](), quiet(), byClock(c))
	require.NoError(t, err)
	require.NoError(t, f.Append(t.Context(), entry("a")))
	r, err := f.replay()
	require.NoError(t, err)
	ms, err := r.Receive(t.Context(), 1)
	require.NoError(t, err)
	c.once = func() { require.NoError(t, r.Close(context.Background())) }
	ms[0].Reject(errors.New("still no such card"))
	require.Nil(t, c.once)
	require.NoError(t, f.Close())
	require.Equal(t, []string{"a"}, replayed(t, open(t, dir)))
}

// leaving is a codec whose Decode ends its goroutine.
type leaving struct {
	codec.Codec[string]
	leaves bool
}

func (l *leaving) Decode(b []byte) (string, error) {
	if l.leaves {
		runtime.Goexit()
	}
	return l.Codec.Decode(b)
}

// Law A6: what the codec ends its goroutine for stays a dead letter. The end of a Replay says that all of it was replayed.
func TestDecodeThatEndsItsGoroutine(t *testing.T) {
	c := &leaving{codec.JSON[string](), true}
	f, err := openWith(t.TempDir(), codec.Codec[string](c), quiet())
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Append(t.Context(), entry("a"), entry("b")))
	require.Empty(t, replayed(t, f))
	_, err = f.fs.Stat(f.path(replayName))
	require.Error(t, err, "it ended, and not all was replayed")
	c.leaves = false
	require.Equal(t, []string{"a", "b"}, replayed(t, f))
}

// Law D3: the longest delay is not over in the next run.
func TestTheLongestDelay(t *testing.T) {
	f := open(t, t.TempDir())
	require.NoError(t, f.Append(t.Context(), entry("a")))
	r, err := f.replay()
	require.NoError(t, err)
	ms, err := r.Receive(t.Context(), 1)
	require.NoError(t, err)
	ms[0].Nack(math.MaxInt64)
	require.NoError(t, r.Close(t.Context()))
	marks, err := f.marks()
	require.NoError(t, err)
	require.Len(t, marks, 1)
	for _, due := range marks {
		require.Greater(t, time.Until(due), 200*365*24*time.Hour)
	}
}

// What is recorded behind a mark that a crash has torn counts.
func TestATornMark(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	require.NoError(t, f.Append(t.Context(), entry("a"), entry("b")))
	r, err := f.replay()
	require.NoError(t, err)
	require.NoError(t, r.Close(t.Context()))
	require.NoError(t, os.WriteFile(f.path(doneName), []byte("0123456789ab"), filePerm))
	r, err = f.replay()
	require.NoError(t, err)
	ms, err := r.Receive(t.Context(), 1)
	require.NoError(t, err)
	ms[0].Ack()
	require.NoError(t, r.Close(t.Context()))
	require.Equal(t, []string{"b"}, replayed(t, f))
}
