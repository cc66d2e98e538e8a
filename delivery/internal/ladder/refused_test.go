package ladder_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// small is a store that refuses payloads above 20 bytes in some queues.
type small struct {
	*memory.Engine
	queues string
}

func (s small) refuse(queue string, m *store.Message) error {
	if strings.Contains(s.queues, queue) && len(m.Payload) > 20 {
		return fmt.Errorf("%w: %d bytes", message.ErrRefused, len(m.Payload))
	}
	return nil
}

func (s small) Put(ctx context.Context, queue string, ms ...store.Message) error {
	for i := range ms {
		if err := s.refuse(queue, &ms[i]); err != nil {
			return err
		}
	}
	return s.Engine.Put(ctx, queue, ms...)
}

func (s small) HandOver(ctx context.Context, moves ...store.Move) error {
	for i := range moves {
		if err := s.refuse(moves[i].Queue, &moves[i].Message); err != nil {
			return err
		}
	}
	return s.Engine.HandOver(ctx, moves...)
}

func (s small) Move(ctx context.Context, moves ...store.Move) error {
	for i := range moves {
		if err := s.refuse(moves[i].Queue, &moves[i].Message); err != nil {
			return err
		}
	}
	return s.Engine.Move(ctx, moves...)
}

// nothing checks that the source has no message for a while.
func nothing(t *testing.T, s ladder.Source[string]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := s.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// putRaw puts messages whose payloads the codec would write in another way.
func putRaw(t *testing.T, s store.Store, queue string, change func(m *message.Meta), ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := store.Message{Meta: message.Meta{ID: id, Key: id[:1]}, Payload: raw(id)}
		change(&m.Meta)
		require.NoError(t, s.Put(t.Context(), queue, m))
	}
}

// raw is a text in JSON, with a needless escape.
func raw(text string) []byte {
	return []byte(fmt.Sprintf(`"\u%04x%s"`, text[0], text[1:]))
}

// Law W2: a message that comes too late is a dead letter with its bytes as received.
func TestSource_TooLateMessageHasItsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, memory := config()
		putRaw(t, memory, "new", func(m *message.Meta) { m.Deadline = time.Now() }, "a1")
		source := build(t, c).Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		nothing(t, source)
		letters := dead(t, memory)
		require.Len(t, letters, 1)
		require.Equal(t, store.Expired, letters[0].Cause)
		require.Equal(t, string(raw("a1")), string(letters[0].Payload))
	})
}

// Regressions (laws W1 and W2): a message that is too late, and does not fit among the
// dead letters, stays where it is, and its dead letter reports that. It was tried again
// each second, for ever. Then its cause was Refused, and it counted a visit that did not
// take place.
func TestSource_MessageTooLateAndTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, memory := config()
		c.Store = small{memory, "dead"}
		putRaw(t, memory, "new", func(m *message.Meta) { m.Deadline = time.Now() }, "a1"+strings.Repeat("x", 20))
		source := build(t, c).Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		nothing(t, source)
		letters := dead(t, memory)
		require.Len(t, letters, 1)
		require.Empty(t, letters[0].Payload)
		require.Contains(t, letters[0].Meta.LastError, `stays in queue "new"`)
		require.Contains(t, letters[0].Meta.LastError, "deadline")
		require.Equal(t, store.Expired, letters[0].Cause)
		require.Zero(t, letters[0].Meta.Visit)
	})
}
