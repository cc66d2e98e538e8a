package jetstream

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// namesFor is how long a list of names is used. Names of records that are gone stay in
	// it for that time.
	namesFor = time.Minute
	// namesBehind is how many changes of records are read one by one. With more, the server
	// lists the names again.
	namesBehind = 32
)

// recordNames are the names of the records of a kind. A list of thousands takes a server a
// tenth of a second, and a history is read in many calls. So the names are kept, and each
// call asks only for later changes. It is immutable.
type recordNames struct {
	names      []string // sorted; some records may be gone
	seen       uint64   // names has the names of all messages up to this number
	listed     time.Time
	reconnects uint64 // of the connection, when the names were listed
}

// namesOf returns the names of the records of a kind, sorted. They include each record
// that is in the stream when it is called. Some of the records may be gone.
func (s *Engine) namesOf(ctx context.Context, kind string) ([]string, error) {
	subjects := s.prefix + recordToken + token(kind) + ".*"
	// A server that was restarted may have lost messages, and use their numbers again.
	reconnects := s.js.Conn().Stats().Reconnects
	now := s.clock.Now()
	s.mu.Lock()
	n := s.known[kind]
	s.mu.Unlock()
	isCurrent := n != nil && n.reconnects == reconnects && now.Sub(n.listed).Abs() < namesFor
	if isCurrent {
		var err error
		n, isCurrent, err = s.catchUp(ctx, subjects, n)
		if err != nil {
			return nil, err
		}
	}
	if !isCurrent {
		seen, err := s.lastSeq(ctx, subjects) // before the names: later messages are changes
		if err != nil {
			return nil, err
		}
		names, err := s.textsOf(ctx, subjects)
		if err != nil {
			return nil, err
		}
		n = &recordNames{names: names, seen: seen, listed: now, reconnects: reconnects}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[kind] = n
	return n.names, nil
}

// catchUp adds the names of later messages. isCurrent is false if there are too many.
func (s *Engine) catchUp(ctx context.Context, subjects string, n *recordNames) (next *recordNames, isCurrent bool, err error) {
	later := *n
	for range namesBehind {
		m, err := s.stream.GetMsg(ctx, later.seen+1, jetstream.WithGetMsgSubject(subjects))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return &later, true, nil
		}
		m, err = s.found(ctx, m, err)
		if err != nil {
			return nil, false, err
		}
		later.seen = m.Sequence
		name, err := text(m.Subject)
		if err != nil {
			logOther(s.logger, err)
			continue
		}
		i, isThere := slices.BinarySearch(later.names, name)
		if !isThere {
			later.names = slices.Insert(slices.Clone(later.names), i, name)
		}
	}
	return n, false, nil
}

// forgetRecordNames makes the next calls list the names of records again.
func (s *Engine) forgetRecordNames() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}
