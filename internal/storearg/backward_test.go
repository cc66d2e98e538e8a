package storearg_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// lists counts the calls of List, and their entries.
type lists struct {
	*memory.Engine
	calls, read int
}

func (l *lists) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	l.calls++
	entries, err := l.Engine.List(ctx, queue, f, p)
	l.read += len(entries)
	return entries, err
}

// Each matching message is read once, the newest first, whether the counts are known or
// not. Messages that arrive later are left out.
func TestReadBackward(t *testing.T) {
	for _, isCounted := range []bool{false, true} {
		for key, want := range map[string]int{"": 7000, "few": 3, "none": 0} {
			t.Run(fmt.Sprint(isCounted, " ", key), func(t *testing.T) {
				e := memory.Open()
				putInParts(t, e)
				f := store.Filter{Key: key}
				n, err := e.Count(t.Context(), "dead", f)
				require.NoError(t, err)
				require.Equal(t, want, n.Messages)
				if !isCounted {
					n = store.Counts{}
				}
				b := storearg.ReadBackward(e, "dead", f, n)
				require.Zero(t, b.Progress())
				var found []int64
				for oldest := int64(math.MaxInt64); !b.IsDone(); {
					entries, err := b.Step(t.Context())
					require.NoError(t, err)
					require.LessOrEqual(t, len(entries), 1000)
					for i := range entries {
						found = append(found, entries[i].Position)
					}
					if len(entries) > 0 {
						require.Less(t, entries[len(entries)-1].Position, oldest, "newer messages were read before")
						oldest = entries[0].Position
						require.NoError(t, e.Put(t.Context(), "dead", store.Message{Meta: message.Meta{ID: "later", Key: key}}))
					}
				}
				require.InDelta(t, 1, b.Progress(), 0)
				require.Len(t, found, want)
				slices.Sort(found)
				require.Len(t, slices.Compact(found), want)
			})
		}
	}
}

// The counts make the first window large enough: a step finds few messages of a long
// queue.
func TestReadBackward_FewStepsWithCounts(t *testing.T) {
	e := &lists{Engine: memory.Open()}
	putInParts(t, e.Engine)
	f := store.Filter{Key: "few"}
	n, err := e.Count(t.Context(), "dead", f)
	require.NoError(t, err)
	b := storearg.ReadBackward(e, "dead", f, n)
	entries, err := b.Step(t.Context())
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.True(t, b.IsDone())
	require.Equal(t, 2, e.calls, "the first position, and the messages")
}

// Where few messages match, the steps look at ever more positions. They still read the
// newest messages first where many match.
func TestReadBackward_FewThenMany(t *testing.T) {
	e := memory.Open()
	for i := range 20 {
		ms := make([]store.Message, 1000)
		for k := range ms {
			ms[k] = store.Message{Meta: message.Meta{ID: fmt.Sprint(i, "/", k), Key: fmt.Sprint(i < 5)}}
		}
		require.NoError(t, e.Put(t.Context(), "dead", ms...))
	}
	b := storearg.ReadBackward(e, "dead", store.Filter{Key: "true"}, store.Counts{})
	oldest, found := int64(5001), 0
	for !b.IsDone() {
		entries, err := b.Step(t.Context())
		require.NoError(t, err)
		if len(entries) > 0 {
			require.Equal(t, oldest-1, entries[len(entries)-1].Position)
			oldest = entries[0].Position
		}
		found += len(entries)
	}
	require.Equal(t, 5000, found)
}

// Regression: between few messages and many, each step halved the window once, and read
// 1,000 messages in vain.
func TestReadBackward_FewStepsToMany(t *testing.T) {
	e := &lists{Engine: memory.Open()}
	put := func(queue string, n int) {
		ms := make([]store.Message, n)
		for k := range ms {
			ms[k] = store.Message{Meta: message.Meta{ID: fmt.Sprint(queue, "/", n, "/", k)}}
		}
		require.NoError(t, e.Put(t.Context(), queue, ms...))
	}
	put("dead", 5000)
	put("other", 60_000)
	put("dead", 1)
	b := storearg.ReadBackward(e, "dead", store.Filter{}, store.Counts{})
	inVain := 0
	for found := 0; found < 1001; {
		before := e.read
		entries, err := b.Step(t.Context())
		require.NoError(t, err)
		found += len(entries)
		if e.read-before >= 1000 && len(entries) == 0 {
			inVain++
		}
	}
	require.LessOrEqual(t, inVain, 1)
}

// putInParts puts 7,000 messages with gaps between their positions. Three have the key
// "few".
func putInParts(t *testing.T, e *memory.Engine) {
	t.Helper()
	for i := range 8 {
		ms := make([]store.Message, 1000)
		for k := range ms {
			ms[k] = store.Message{Meta: message.Meta{ID: fmt.Sprint(i, "/", k), Provider: fmt.Sprint(i)}}
		}
		if i < 3 {
			ms[0].Meta.Key = "few"
		}
		require.NoError(t, e.Put(t.Context(), "dead", ms...))
		require.NoError(t, e.Put(t.Context(), "other", ms[:700]...))
	}
	_, err := e.Purge(t.Context(), "dead", store.Filter{Provider: "3"})
	require.NoError(t, err)
}
