package jetstream

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The stream stores the names of queues, for [Engine.Queues]. A process publishes a name
// again before a Put more than nameAgain later. So if a name is older than nameOld, the
// next Put publishes it first, and the old one can be removed if the queue is empty (law
// W3).
const (
	nameAgain = 5 * time.Minute
	nameOld   = 2 * nameAgain

	namesLooked = 2 // names checked for each published one
)

func (s *Engine) nameQueue(ctx context.Context, queue string) error {
	now := s.clock.Now()
	s.mu.Lock()
	known := now.Sub(s.named[queue]) < nameAgain
	s.mu.Unlock()
	if known {
		return nil
	}
	m := &nats.Msg{Subject: s.prefix + nameToken + token(queue), Header: nats.Header{jetstream.ExpectedStreamHeader: {s.name}}}
	if _, err := s.js.PublishMsg(ctx, m); err != nil {
		return s.published(ctx, err)
	}
	s.mu.Lock()
	if now.Sub(s.cleared) >= nameAgain {
		maps.DeleteFunc(s.named, func(_ string, at time.Time) bool { return now.Sub(at) >= nameAgain })
		s.cleared = now
	}
	s.named[queue] = now
	s.mu.Unlock()
	s.forgetNames(ctx)
	return nil
}

// forgetNames checks the next names in the stream, or later after an error.
func (s *Engine) forgetNames(ctx context.Context) {
	for range namesLooked {
		if s.forgetName(ctx) != nil {
			return
		}
	}
}

// forgetName removes the next name in the stream if it is unused.
func (s *Engine) forgetName(ctx context.Context) error {
	s.mu.Lock()
	from := s.lookAt
	s.mu.Unlock()
	m, err := s.stream.GetMsg(ctx, max(1, from), jetstream.WithGetMsgSubject(s.prefix+nameToken+"*"))
	next := uint64(0)
	if err == nil {
		next = m.Sequence + 1
	}
	s.mu.Lock()
	s.lookAt = next
	s.mu.Unlock()
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	queue, err := text(m.Subject)
	if err != nil {
		return nil //nolint:nilerr // it is not of this store
	}
	now, err := s.now(ctx)
	if err != nil || instant(now).Sub(m.Time) < nameOld {
		return err
	}
	last, err := s.lastSeq(ctx, s.queueSubject(queue)+"*")
	if err != nil || last != 0 {
		return err
	}
	return s.erase(ctx, m.Sequence) // by its number: a name published meanwhile stays
}
