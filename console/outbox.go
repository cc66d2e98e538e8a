package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

type outbox struct {
	Queue  string
	State  queueState    // without a name if it is empty
	Dead   queueState    // its dead letters
	Relays int           // processes that report relaying it
	Owner  string        // of its lock: the working relay, or empty
	Lease  time.Duration // remaining time of the lock

	// The latest in the relays' reports.
	LastError   string
	LastFailure time.Time
	Failures    int // in a row
}

func (s *server) locks(ctx context.Context) ([]lock.Holding, error) {
	if k, ok := s.engine.(store.Keeper); ok {
		return k.Locks().Held(ctx, "")
	}
	return nil, nil
}

// outboxesOf returns the outboxes with a relay, a lock or dead letters, by name.
func outboxesOf(l *look, held []lock.Holding) (list []outbox) {
	at := func(name string) *outbox {
		i := slices.IndexFunc(list, func(o outbox) bool { return o.Queue == name })
		if i < 0 {
			i, list = len(list), append(list, outbox{Queue: name})
		}
		return &list[i]
	}
	for _, w := range l.Workers {
		if w.Outbox != "" {
			o := at(w.Outbox)
			o.Relays++
			o.read(w)
		}
	}
	for _, q := range l.Queues {
		if base, ok := storearg.OutboxOfDead(q.Name); ok {
			at(base).Dead = q
		}
	}
	for _, q := range l.Queues {
		locked := slices.IndexFunc(held, func(h lock.Holding) bool { return h.Name == q.Name })
		if locked >= 0 || slices.ContainsFunc(list, func(o outbox) bool { return o.Queue == q.Name }) {
			at(q.Name).State = q
		}
	}
	for _, h := range held {
		for i := range list {
			if list[i].Queue == h.Name {
				list[i].Owner, list[i].Lease = h.Owner, h.For
			}
		}
	}
	slices.SortFunc(list, func(a, b outbox) int { return strings.Compare(a.Queue, b.Queue) })
	return list
}

// read reads a relay's report, perhaps of another version.
func (o *outbox) read(w worker) {
	var s struct {
		LastError   string
		LastFailure time.Time
		Failures    int
	}
	for _, text := range w.Operators {
		_ = json.Unmarshal(text, &s)
	}
	if s.LastFailure.After(o.LastFailure) {
		o.LastError, o.LastFailure = s.LastError, s.LastFailure
	}
	o.Failures += s.Failures // only the working relay has failures
}

func (s *server) outboxes(r *http.Request) (view, error) {
	l, err := s.latest(r.Context())
	if err != nil {
		return view{}, err
	}
	return view{Name: "outboxes", Title: "Outboxes", Data: l.outboxes}, nil
}

func (s *server) outboxProblems(l *look) (list []problem) {
	for _, o := range l.outboxes {
		name, n, path := cut(100, o.Queue), o.State.Messages, s.link("/outboxes")
		switch {
		case o.Failures > 0:
			list = append(list, problem{2, fmt.Sprintf("The outbox %s cannot be sent, where %s: %s", name, count(n, "message waits", "messages wait"), failure(200, o.LastError)), path, "outboxes"})
		case n > 0 && o.Owner == "" && o.Relays == 0:
			list = append(list, problem{2, fmt.Sprintf("No relay sends the outbox %s, where %s.", name, count(n, "message waits", "messages wait")), path, "outboxes"})
		}
	}
	return list
}
