package jsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
)

// pieces is in how many parts a stream is read, each with a request for each message; several at once.
const pieces = 64

// scan calls f for all messages on subjects, as they are now or become meanwhile: a message whose state changes comes again. It
// leaves out what stood at a position up to after, unless its state has changed since. It asks the leader of the stream: a consumer
// may be at a server that is behind. f is called by one goroutine at a time.
func (s *Store) scan(ctx context.Context, subjects string, after store.Position, f func(r *record) error) error {
	from := uint64(after) + 1
	for range maxTries { // what changes during one pass is seen by the next, which is short
		info, err := s.stream.Info(ctx)
		if err != nil {
			return fmt.Errorf("jsstore: stream %s: %w", s.name, err)
		}
		from = max(from, info.State.FirstSeq)
		last := info.State.LastSeq
		if from > last {
			return nil
		}
		size := (last-from)/pieces + 1
		errs := make([]error, (last-from)/size+1)
		var mu sync.Mutex
		parallel.Do(len(errs), func(i int) {
			first := from + uint64(i)*size
			errs[i] = s.piece(ctx, subjects, first, min(last, first+size-1), func(r *record) error {
				mu.Lock()
				defer mu.Unlock()
				return f(r)
			})
		})
		if err := errors.Join(errs...); err != nil {
			return err
		}
		from = last + 1
	}
	return nil
}

// piece reads the messages with the sequence numbers from first to last.
func (s *Store) piece(ctx context.Context, subjects string, first, last uint64, f func(r *record) error) error {
	for next := first; next <= last; {
		m, err := s.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subjects))
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("jsstore: stream %s: %w", s.name, err)
		case m.Sequence > last:
			return nil
		}
		next = m.Sequence + 1
		r, err := s.got(m, nil)
		if err != nil {
			logOther(s.logger, err)
			continue
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// found is a message that matches.
type found struct {
	*record
	store.Entry
}

// matching calls f for the messages of a queue that match. Those that change come again.
func (s *Store) matching(ctx context.Context, queue string, f *store.Filter, p store.Page, visit func(m found) error) error {
	return s.scan(ctx, s.queueSubject(queue)+"*", p.After, func(r *record) error {
		position := store.Position(r.position)
		if r.kind == gone || position <= p.After || p.Until != 0 && position > p.Until {
			return nil
		}
		m, err := r.message()
		if err != nil {
			return err
		}
		e := store.Entry{Message: m, Position: position, Arrived: instant(r.arrived), Fence: r.fence}
		if r.kind == leased {
			e.LeasedUntil = instant(r.ready())
		}
		if !f.Match(&e) {
			return nil
		}
		return visit(found{r, e})
	})
}

// first returns those of all with the lowest positions, in order: n at most, and as many as fit (see store.MaxBytes).
func first(all map[uint64]found, n int) []found {
	list := slices.SortedFunc(maps.Values(all), func(a, b found) int { return cmp.Compare(a.Position, b.Position) })
	size := 0
	for i := range list {
		if i == n || size >= store.MaxBytes {
			return list[:i]
		}
		size += len(list[i].Payload)
	}
	return list
}

// page returns the messages of a page.
func (s *Store) page(ctx context.Context, queue string, f *store.Filter, p store.Page, also func(m found) bool) ([]found, error) {
	all := map[uint64]found{}
	size := 0 // of all that were added
	err := s.matching(ctx, queue, f, p, func(m found) error {
		if !also(m) {
			delete(all, m.position)
			return nil
		}
		all[m.position] = m
		size += len(m.Payload)
		if len(all) > 2*p.Max+1000 || size > 4*store.MaxBytes { // memory is bounded by the page, not by the queue
			keep := first(all, p.Max)
			clear(all)
			size = 0
			for _, m := range keep {
				all[m.position] = m
				size += len(m.Payload)
			}
		}
		return nil
	})
	return first(all, p.Max), err
}

// List implements [store.Inspector]. It reads the queue from the page on.
func (s *Store) List(ctx context.Context, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	return list, s.do(ctx, func() error {
		if err := checkQueue(storearg.Page(queue, p), queue); err != nil {
			return err
		}
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		page, err := s.page(ctx, queue, &f, p, func(found) bool { return true })
		if err != nil {
			return err
		}
		for _, m := range page {
			if m.kind != leased || m.ready() <= now {
				m.LeasedUntil = time.Time{}
			}
			list = append(list, m.Entry)
		}
		return nil
	})
}

// Count implements [store.Inspector]. It reads the whole queue.
func (s *Store) Count(ctx context.Context, queue string, f store.Filter) (c store.Counts, err error) {
	return c, s.do(ctx, func() error {
		if err := checkQueue(storearg.Page(queue, store.Page{Max: 1}), queue); err != nil {
			return err
		}
		seen := map[uint64]bool{}
		err := s.matching(ctx, queue, &f, store.Page{}, func(m found) error {
			if !seen[m.position] {
				seen[m.position] = true
				c.Add(m.Cause, m.Meta.Reasons, 1, m.Arrived, instant(m.ready()), m.Position)
			}
			return nil
		})
		if err != nil {
			return err
		}
		now, err := s.now(ctx)
		c.SetAge(instant(now))
		return err
	})
}

// Purge implements [store.Inspector]. It reads the whole queue.
func (s *Store) Purge(ctx context.Context, queue string, f store.Filter) (n int, err error) {
	return n, s.do(ctx, func() error {
		if err := checkQueue(storearg.Page(queue, store.Page{Max: 1}), queue); err != nil {
			return err
		}
		info, err := s.stream.Info(ctx)
		if err != nil {
			return fmt.Errorf("jsstore: stream %s: %w", s.name, err)
		}
		if info.State.LastSeq == 0 {
			return nil
		}
		all := map[uint64]*record{}
		err = s.matching(ctx, queue, &f, store.Page{Until: store.Position(info.State.LastSeq)}, func(m found) error {
			m.body = nil
			all[m.position] = m.record
			return nil
		})
		if err != nil {
			return err
		}
		records := slices.Collect(maps.Values(all))
		removed := make([]bool, len(records))
		errs := make([]error, len(records))
		parallel.Do(len(records), func(i int) { removed[i], errs[i] = s.purge(ctx, queue, records[i]) })
		for _, is := range removed {
			if is {
				n++
			}
		}
		return errors.Join(errs...)
	})
}

// purge removes a message, whatever its state is by now.
func (s *Store) purge(ctx context.Context, queue string, r *record) (bool, error) {
	for range maxTries {
		err := s.remove(ctx, queue, identityOf(r.subject), r.seq)
		if !errors.Is(err, errChanged) {
			return err == nil, err
		}
		newer, err := s.read(ctx, r.subject)
		if err != nil || newer == nil || newer.position != r.position || newer.kind == gone {
			return false, err
		}
		r = newer
	}
	return false, fmt.Errorf("jsstore: stream %s: others change message %d all the time", s.name, r.position)
}

// Claim implements [store.Inspector]. It reads the queue from the page on.
func (s *Store) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) (taken []store.Leased, err error) {
	err = s.do(ctx, func() error {
		if err := checkQueue(errors.Join(storearg.Page(queue, p), storearg.Take(queue, p.Max, lease)), queue); err != nil {
			return err
		}
		for { // until some are taken, or there are none: others may be faster
			now, err := s.now(ctx)
			if err != nil {
				return err
			}
			page, err := s.page(ctx, queue, &f, p, func(m found) bool { return m.kind == waiting || m.ready() <= now })
			if err != nil || len(page) == 0 {
				return err
			}
			got := make([]*store.Leased, len(page))
			errs := make([]error, len(page))
			parallel.Do(len(page), func(i int) { got[i], errs[i] = s.lease(ctx, nil, queue, page[i].record, now, lease) })
			for _, l := range got {
				if l != nil {
					taken = append(taken, *l)
				}
			}
			if err := errors.Join(errs...); err != nil || len(taken) > 0 {
				return err
			}
		}
	})
	if len(taken) > 0 {
		err = nil // the next call returns it
	}
	return taken, err
}

// maxMoves is how many moves are one transaction: each is two messages.
const maxMoves = maxBatch / 2

// Move implements [store.Inspector].
func (s *Store) Move(ctx context.Context, moves ...store.Move) error {
	return s.do(ctx, func() error {
		if err := storearg.Move(moves...); err != nil {
			return err
		}
		for i := range moves {
			if err := checkQueue(nil, moves[i].Queue); err != nil {
				return err
			}
		}
		lost := map[store.Lease]bool{}
		for rest := moves; len(rest) > 0; {
			n := min(len(rest), maxMoves)
			if err := s.move(ctx, rest[:n], lost); err != nil {
				return err
			}
			rest = rest[n:]
		}
		var gone []store.Lease
		for _, m := range moves {
			if lost[m.Lease] {
				gone = append(gone, m.Lease)
			}
		}
		return storearg.Lost(gone)
	})
}

func (s *Store) move(ctx context.Context, moves []store.Move, lost map[store.Lease]bool) error {
	for range maxTries {
		records := make([]*record, len(moves))
		errs := make([]error, len(moves))
		parallel.Do(len(moves), func(i int) {
			l := moves[i].Lease
			e, err := parseEntry(l.Entry)
			if err != nil || len(l.Queue) > maxQueue {
				return // lost
			}
			r, err := s.read(ctx, s.queueSubject(l.Queue)+e.identity)
			if errs[i] = err; r.holds(e, l.Fence) {
				records[i] = r
			}
		})
		if err := errors.Join(errs...); err != nil {
			return err
		}
		var puts []put
		var moved []*record
		seen := map[string]bool{}
		for i, r := range records {
			if r == nil || seen[r.subject] {
				lost[moves[i].Lease] = r == nil || lost[moves[i].Lease]
				continue
			}
			seen[r.subject] = true
			moved = append(moved, r)
		}
		for i, r := range records {
			if r == nil {
				continue
			}
			p, err := s.newPut(moves[i].Queue, &moves[i].Message)
			if err != nil {
				return err
			}
			if p.subject == r.subject {
				p.behind = r.seq // it takes its own place
			} else if seen[p.subject] {
				continue // there is one
			}
			seen[p.subject] = true
			puts = append(puts, p)
		}
		if err := s.transact(ctx, puts, moved); !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("jsstore: stream %s: others change the same messages all the time", s.name)
}

// Queues implements [store.Inspector]. It reads all messages.
func (s *Store) Queues(ctx context.Context) (names []string, err error) {
	return names, s.do(ctx, func() error {
		live := map[string]map[string]bool{}
		err := s.scan(ctx, s.prefix+">", 0, func(r *record) error {
			queue, err := s.queueOf(r.subject)
			if err != nil {
				return err
			}
			if live[queue] == nil {
				live[queue] = map[string]bool{}
			}
			if r.kind == gone {
				delete(live[queue], r.subject)
			} else {
				live[queue][r.subject] = true
			}
			return nil
		})
		for queue, subjects := range live {
			if len(subjects) > 0 {
				names = append(names, queue)
			}
		}
		slices.Sort(names)
		return err
	})
}
