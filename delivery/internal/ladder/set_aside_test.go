package ladder_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// A message that is rejected and does not fit among the dead letters stays in its queue
// for good. Later messages of its key do not wait for it, whether it stays in a layer or
// in Blocked, and also after a restart.
func TestConfigBlocked_MessageSetAsideForGood(t *testing.T) {
	large := func(id string) string { return id + strings.Repeat("x", 20) }
	for name, ids := range map[string][]string{
		"in a layer": {large("a1"), "a2", "a3"},
		"in Blocked": {"a1", large("a2"), "a3"},
	} {
		for _, isRestarted := range []bool{false, true} {
			if isRestarted {
				name += ", after a restart"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, memory := config()
					c := blocking(small{memory, "dead"})
					l := build(t, c)
					putRaw(t, memory, "new", func(*message.Meta) {}, ids...)
					source := l.Source(nil)
					take(t, l, one(t, source)) // to a layer
					m := one(t, source)
					if m.Value == "a1" {
						m.Ack()
						m = one(t, source)
					}
					require.Greater(t, len(m.Value), 20)
					m.Reject(errors.New("no such account"))
					time.Sleep(2 * time.Second) // to record the settlement
					letters := dead(t, memory)
					require.Len(t, letters, 1)
					require.Empty(t, letters[0].Payload, "a pointer")
					if isRestarted {
						require.NoError(t, source.Close(context.Background()))
						source = build(t, c).Source(nil)
					}
					defer func() { require.NoError(t, source.Close(context.Background())) }()
					wants := ids[1:]
					if ids[0] == "a1" {
						wants = ids[2:]
					}
					for _, want := range wants {
						ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
						defer cancel()
						ms, err := source.Receive(ctx, 1)
						require.NoError(t, err)
						require.Equal(t, want, ms[0].Value)
						ms[0].Ack()
					}
					nothing(t, source)
				})
			})
		}
	}
}

// lateRelease is a store in which the lease of a message that is to be set aside was
// lost, the first time.
type lateRelease struct {
	small
	releases *atomic.Int32
}

func (s lateRelease) Release(ctx context.Context, delay time.Duration, released ...store.Lease) error {
	if delay < 100*365*24*time.Hour {
		return s.small.Release(ctx, delay, released...)
	}
	if s.releases.Add(1) == 1 {
		return &store.LeaseError{Lost: released}
	}
	return s.small.Release(ctx, delay, released...)
}

// A message whose lease was lost was not set aside, so it is delivered again, before
// later messages of its key.
func TestConfigBlocked_LeaseLostBeforeMessageIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		var releases atomic.Int32
		l := build(t, blocking(lateRelease{small{memory, "dead"}, &releases}))
		large := "a1" + strings.Repeat("x", 20)
		putRaw(t, memory, "new", func(*message.Meta) {}, large, "a2")
		source := l.Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		take(t, l, one(t, source)) // to a layer
		for range 2 {
			m := one(t, source)
			require.Equal(t, large, m.Value)
			m.Reject(errors.New("no such account"))
		}
		m := one(t, source)
		require.Equal(t, "a2", m.Value)
		m.Ack()
		nothing(t, source)
		require.EqualValues(t, 2, releases.Load())
	})
}

// setAsideElsewhere sets a message aside as another process does.
func setAsideElsewhere(t *testing.T, s *memory.Engine, queue, id string) {
	t.Helper()
	taken, err := s.Claim(t.Context(), queue, store.Filter{IDs: []string{id}}, store.Page{Max: 1}, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.NoError(t, s.Release(t.Context(), 100*365*24*time.Hour, taken[0].Lease))
}

// If another process sets a message of a layer aside, this one continues with its key.
func TestConfigBlocked_MessageSetAsideByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		putRaw(t, memory, "new", func(*message.Meta) {}, "a1", "a2")
		source := l.Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		m := one(t, source)
		id := m.Meta().ID
		take(t, l, m) // to a layer
		time.Sleep(time.Second)
		setAsideElsewhere(t, memory, "1m", id)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ms, err := source.Receive(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, "a2", ms[0].Value)
		ms[0].Ack()
	})
}

// A delay of a user does not set a message aside: it keeps its place before later
// messages of its key.
func TestConfigBlocked_LongNack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		putRaw(t, memory, "new", func(*message.Meta) {}, "a1", "a2")
		source := l.Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		take(t, l, one(t, source)) // to a layer
		m := one(t, source)
		require.Equal(t, "a1", m.Value)
		m.Nack(200 * 365 * 24 * time.Hour)
		nothing(t, source)
	})
}

// listed counts the calls of List.
type listed struct {
	*memory.Engine
	lists atomic.Int32
}

func (l *listed) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	l.lists.Add(1)
	return l.Engine.List(ctx, queue, f, p)
}

// Many messages of a key that were set aside are listed together.
func TestConfigBlocked_ManyMessagesSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &listed{Engine: memory.Open()}
		for i := range 250 {
			id := fmt.Sprint("a", i)
			putRaw(t, s, "blocked", func(*message.Meta) {}, id)
			setAsideElsewhere(t, s.Engine, "blocked", id)
		}
		putRaw(t, s, "blocked", func(*message.Meta) {}, "a250")
		source := build(t, blocking(s)).Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		m := one(t, source)
		require.Equal(t, "a250", m.Value)
		require.Less(t, s.lists.Load(), int32(50))
		m.Ack()
	})
}
