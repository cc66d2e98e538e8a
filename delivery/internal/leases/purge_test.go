package leases_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// slowAnswers does at once what it is asked for, and then calls a function before it
// returns.
type slowAnswers struct {
	*memory.Engine
	afterWrite, afterTake func()
}

func (s *slowAnswers) Done(ctx context.Context, ls ...store.Lease) error {
	err := s.Engine.Done(ctx, ls...)
	s.afterWrite()
	return err
}

func (s *slowAnswers) Release(ctx context.Context, d time.Duration, ls ...store.Lease) error {
	err := s.Engine.Release(ctx, d, ls...)
	s.afterWrite()
	return err
}

func (s *slowAnswers) Move(ctx context.Context, ms ...store.Move) error {
	err := s.Engine.Move(ctx, ms...)
	s.afterWrite()
	return err
}

func (s *slowAnswers) Take(ctx context.Context, q string, n int, l time.Duration) ([]store.Leased, error) {
	ms, err := s.Engine.Take(ctx, q, n, l)
	if len(ms) > 0 {
		s.afterTake()
	}
	return ms, err
}

// The store has settled a message, and the source does not know it yet.
func TestLookForPurged_WhileAMessageIsSettled(t *testing.T) {
	for how, settle := range map[string]func(m message.Message[string]){
		"done":    message.Message[string].Ack,
		"reject":  func(m message.Message[string]) { m.Reject(errors.New("bad")) },
		"release": func(m message.Message[string]) { m.Nack(0) },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var src *leases.Source[string]
				looked, purges := 0, 0
				s := &slowAnswers{Engine: memory.Open(), afterTake: func() {}, afterWrite: func() {
					looked++
					src.LookForPurged(t.Context(), "")
				}}
				src = leases.NewSource(s, "q", "dead", codec.JSON[string](), leases.WithLease(time.Minute),
					leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				src.OnPurge(func() { purges++ })
				put(t, s, "1")
				m := receive(t, src)
				settle(m)
				synctest.Wait()
				require.NoError(t, src.Close(t.Context()))
				require.Equal(t, 1, looked)
				require.Zero(t, purges)
				require.Zero(t, src.LeasesLost())
				require.False(t, m.IsPurged())
				require.NotContains(t, log.String(), "could not be extended")
				require.NotContains(t, log.String(), "purged")
			})
		})
	}
}

// A message is settled after the look has read the messages in flight.
func TestLookForPurged_MessageThatIsSettledMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &extendsAfter{Engine: memory.Open()}
		src := leases.NewSource(store.Store(s), "q", "dead", codec.JSON[string](), leases.WithLease(time.Minute), quiet)
		put(t, s, "1")
		m := receive(t, src)
		s.before = func() {
			m.Ack()
			synctest.Wait()
		}
		src.LookForPurged(t.Context(), "")
		require.NoError(t, src.Close(t.Context()))
		require.Zero(t, src.LeasesLost())
		require.False(t, m.IsPurged())
	})
}

// extendsAfter calls before at the start of Extend.
type extendsAfter struct {
	*memory.Engine
	before func()
}

func (s *extendsAfter) Extend(ctx context.Context, d time.Duration, ls ...store.Lease) error {
	s.before()
	return s.Engine.Extend(ctx, d, ls...)
}

// A message is purged, and looked for, while the store returns it to the source.
func TestLookForPurged_WhileATakeRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		purges := 0
		var src *leases.Source[string]
		s := &slowAnswers{Engine: memory.Open(), afterWrite: func() {}}
		s.afterTake = func() {
			_, err := s.Engine.Purge(t.Context(), "q", store.Filter{})
			assert.NoError(t, err)
			src.LookForPurged(t.Context(), "")
		}
		src = leases.NewSource(s, "q", "dead", codec.JSON[string](), leases.WithLease(time.Minute), quiet)
		src.OnPurge(func() { purges++ })
		put(t, s, "1")
		m := receive(t, src)
		require.True(t, m.IsPurged())
		require.Equal(t, 1, purges)
		m.Ack()
		require.NoError(t, src.Close(t.Context()))
	})
}
