package ladder_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func requireIdle(t *testing.T, l *ladder.Ladder[string]) {
	t.Helper()
	synctest.Wait()
	require.Zero(t, l.Keys())
	require.Zero(t, l.Size(), "what counts for MaxBlocked")
}

// nothing checks that the source has no message for a while.
func nothing(t *testing.T, s delivery.Source[string]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := s.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A message that is held behind another of its key is delivered at once when that is
// done, without the store, even to a Receive that waits.
func TestHeldMessagesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		j := &journal{from: []string{"a1", "a2", "b1"}, acked: map[string]bool{}}
		source := l.Source(j)
		a1 := one(t, source)
		b1 := one(t, source)
		require.Equal(t, [...]string{"a1", "b1"}, [...]string{a1.Value, b1.Value})
		b1.Ack()
		nothing(t, source)
		a1.Ack()
		a2 := one(t, source)
		require.Equal(t, "a2", a2.Value)
		j.give("a3")
		nothing(t, source)
		begun := time.Now()
		time.AfterFunc(1234*time.Millisecond, a2.Ack)
		a3 := one(t, source)
		require.Equal(t, "a3", a3.Value)
		require.Equal(t, 1234*time.Millisecond, time.Since(begun), "the end of a2 has waked Receive")
		a3.Ack()
		requireIdle(t, l)
		require.NoError(t, source.Close(t.Context()))
	})
}

// Laws D1, D4: a new message of a key is held behind an earlier message that has returned
// from its layer, and is not mistaken for a redelivery of that message.
func TestKeys_NewMessageBehindOneOfALayer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		j := &journal{from: []string{"a1"}, acked: map[string]bool{}}
		source := l.Source(j)
		take(t, l, one(t, source))
		back := one(t, source)
		require.Equal(t, 2, back.Meta().Visit)
		j.give("a2")
		nothing(t, source)
		require.False(t, j.acked["a2"], "law D1")
		back.Ack()
		a2 := one(t, source)
		require.Equal(t, "a2", a2.Value)
		a2.Ack()
		requireIdle(t, l)
		require.NoError(t, source.Close(t.Context()))
	})
}

// Messages without a key wait for no others.
func TestMessagesWithoutAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		values := []string{"x", "y", "z"}
		source := l.Source(&unkeyed{journal{from: values, acked: map[string]bool{}}})
		take(t, l, one(t, source)) // x waits in a layer
		y, z := one(t, source), one(t, source)
		require.Equal(t, [...]string{"y", "z"}, [...]string{y.Value, z.Value})
		y.Ack()
		z.Ack()
		x := one(t, source)
		require.Equal(t, "x", x.Value)
		x.Ack()
		requireIdle(t, l)
		require.NoError(t, source.Close(t.Context()))
	})
}

// unkeyed is a journal whose messages have no key.
type unkeyed struct{ journal }

func (u *unkeyed) Receive(ctx context.Context, n int) ([]message.Message[string], error) {
	ms, err := u.journal.Receive(ctx, n)
	for i, m := range ms {
		ms[i] = message.New(m.Value, &message.Meta{ID: m.Value}, m.Settle)
	}
	return ms, err
}

// moody is a store each of whose methods fails once, when it is called for a queue.
type moody struct {
	*memory.Engine
	queue  string
	failed map[string]bool
}

func (s *moody) fail(method, queue string) error {
	if queue != s.queue || s.failed[method] {
		return nil
	}
	s.failed[method] = true
	return errRefused
}

func (s *moody) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if err := s.fail("List", queue); err != nil {
		return nil, err
	}
	return s.Engine.List(ctx, queue, f, p)
}

func (s *moody) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	if err := s.fail("Claim", queue); err != nil {
		return nil, err
	}
	return s.Engine.Claim(ctx, queue, f, p, lease)
}

func (s *moody) Done(ctx context.Context, leases ...store.Lease) error {
	if len(leases) > 0 {
		if err := s.fail("Done", leases[0].Queue); err != nil {
			return err
		}
	}
	return s.Engine.Done(ctx, leases...)
}

func (s *moody) Release(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if len(leases) > 0 {
		if err := s.fail("Release", leases[0].Queue); err != nil {
			return err
		}
	}
	return s.Engine.Release(ctx, d, leases...)
}

// A store that fails does not change the order of a key, and loses no message:
// settlements that were not recorded are recorded later.
func TestKeys_StoreFails(t *testing.T) {
	for _, queue := range []string{"blocked", "1m"} {
		synctest.Test(t, func(t *testing.T) {
			_, memory := config()
			s := &moody{memory, queue, map[string]bool{"List": true}}
			l := build(t, blocking(s))
			source := l.Source(&journal{from: []string{"a1", "a2", "a3"}, acked: map[string]bool{}})
			next := func() message.Message[string] {
				for {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					ms, err := source.Receive(ctx, 1)
					cancel()
					if err == nil {
						require.Len(t, ms, 1)
						return ms[0]
					}
					require.ErrorIs(t, err, errRefused)
				}
			}
			take(t, l, next())
			nothing(t, source) // a2 and a3 are parked
			s.failed["List"] = false
			if queue == "1m" { // the source looks for overdue messages in a layer: here they are leased elsewhere
				time.Sleep(time.Minute)
				leased, err := memory.Take(t.Context(), queue, 1, 2*time.Minute)
				require.NoError(t, err)
				require.Len(t, leased, 1)
			}
			nacked := false
			var got []string
			for len(got) < 3 {
				m := next()
				if !nacked && m.Value == "a2" {
					nacked = true
					m.Nack(time.Second)
					continue
				}
				got = append(got, m.Value)
				m.Ack()
			}
			require.Equal(t, []string{"a1", "a2", "a3"}, got)
			require.True(t, s.failed["List"], queue)
			require.True(t, s.failed["Done"], queue)
			time.Sleep(time.Minute)
			requireIdle(t, l)
			require.NoError(t, source.Close(t.Context()))
			queues, err := memory.Queues(t.Context())
			require.NoError(t, err)
			require.Empty(t, queues, "all is recorded")
		})
	}
}
