package jetstream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
)

func indexed(f *store.Filter) bool {
	return len(f.IDs) == 0 && f.Key == "" && f.Source == "" && f.Provider == "" && f.Error == ""
}

// matchIndex checks the conditions that do not need the body.
func matchIndex(f *store.Filter, it *item) bool {
	known := store.Filter{Cause: f.Cause, Reason: f.Reason, Since: f.Since, Before: f.Before}
	e := store.Entry{Arrived: instant(it.arrived)}
	e.Cause, e.Meta.Reasons = it.why.Cause, it.why.Reasons
	return known.Match(&e)
}

type found struct {
	*record
	store.Entry
}

// visit calls f for a page's matching messages, in the order of their positions, until f
// returns false. It reads candidates from the leader, several at once, since a consumer's
// server may be behind.
func (s *Engine) visit(ctx context.Context, queue string, filter *store.Filter, p store.Page, f func(m found) bool) error {
	ix, err := s.latest(ctx, queue)
	if err != nil || ix == nil {
		return err
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	for after, end := uint64(p.After), false; !end; {
		items := ix.after(after, lookAtOnce)
		end = len(items) < lookAtOnce
		if len(items) > 0 {
			after = items[len(items)-1].position
		}
		items = slices.DeleteFunc(items, func(it item) bool {
			past := p.Until != 0 && it.position > uint64(p.Until)
			end = end || past
			return past || !matchIndex(filter, &it)
		})
		for some := range slices.Chunk(items, min(readAtOnce, p.Max)) {
			more, err := s.visitSome(ctx, ix, queue, some, now, filter, f)
			if err != nil || !more {
				return err
			}
		}
	}
	return nil
}

const readAtOnce = 64

// lookAtOnce is how many items are checked before their messages are read.
const lookAtOnce = 1000

func (s *Engine) visitSome(ctx context.Context, ix *index, queue string, items []item, now uint64, filter *store.Filter, f func(m found) bool) (
	more bool, _ error,
) {
	records := make([]*record, len(items))
	errs := make([]error, len(items))
	parallel.Do(len(items), func(i int) { records[i], errs[i] = s.current(ctx, ix, queue, items[i]) })
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	for _, r := range records {
		if r == nil {
			continue
		}
		e := r.entry(now)
		if filter.Match(&e) && !f(found{r, e}) {
			return false, nil
		}
	}
	return true, nil
}

// current reads an item's present message, or returns nil if it is gone.
func (s *Engine) current(ctx context.Context, ix *index, queue string, it item) (*record, error) {
	r, err := s.readSeq(ctx, it.seq)
	if r == nil && err == nil {
		r, err = s.read(ctx, s.queueSubject(queue)+it.identity)
		if err == nil {
			ix.refresh(it.identity, it.seq, r)
		}
	}
	if r == nil || err != nil || r.kind == removed || r.position != it.position {
		return nil, err
	}
	return r, nil
}

// List implements [store.Inspector]. With a filter on content it also reads messages that
// do not match.
func (s *Engine) List(ctx context.Context, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		if err := checkQueue(storearg.Page(queue, p), queue); err != nil {
			return err
		}
		size := 0
		return s.visit(ctx, queue, &f, p, func(m found) bool {
			list = append(list, m.Entry)
			size += len(m.Payload)
			return len(list) < p.Max && size < storearg.MaxBytes
		})
	})
	return list, err
}

// Count implements [store.Inspector]. It reads messages only if the filter is for ids, a
// key, a source, a provider or an error.
func (s *Engine) Count(ctx context.Context, queue string, f store.Filter) (c store.Counts, err error) {
	err = s.do(ctx, func(ctx context.Context) (err error) {
		if err := checkQueue(storearg.Page(queue, store.Page{Max: 1}), queue); err != nil {
			return err
		}
		c, err = s.count(ctx, queue, f)
		return err
	})
	return c, err
}

func (s *Engine) count(ctx context.Context, queue string, f store.Filter) (c store.Counts, err error) {
	ix, err := s.latest(ctx, queue)
	switch {
	case err != nil:
		return c, err
	case ix != nil && indexed(&f):
		c = ix.count(func(it *item) bool { return matchIndex(&f, it) })
	case ix != nil:
		err = s.visit(ctx, queue, &f, store.Page{Max: math.MaxInt}, func(m found) bool {
			next := instant(m.ready())
			if m.Held {
				c.Held++
				next = time.Time{}
			}
			c.Add(m.Cause, m.Meta.Reasons, 1, m.Arrived, next, m.Position)
			return true
		})
	}
	if err != nil {
		return c, err
	}
	if c.Messages > 0 {
		now, err := s.now(ctx)
		if err != nil {
			return c, err
		}
		c.SetAge(instant(now))
	}
	return c, nil
}

// Purge implements [store.Inspector]. It works in steps of up to 1,000 messages.
func (s *Engine) Purge(ctx context.Context, queue string, f store.Filter) (n int, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		if err := checkQueue(storearg.Page(queue, store.Page{Max: 1}), queue); err != nil {
			return err
		}
		info, err := s.stream.Info(ctx)
		if err != nil {
			return fmt.Errorf("jetstream: stream %s: %w", s.name, err)
		}
		p := store.Page{Until: int64(info.State.LastSeq), Max: math.MaxInt}
		if p.Until == 0 {
			return nil
		}
		if indexed(&f) {
			return s.purgeIndexed(ctx, queue, &f, p, &n)
		}
		var some []item
		err = s.visit(ctx, queue, &f, p, func(m found) bool {
			some = append(some, item{identity: identityOf(m.subject), seq: m.seq, position: m.position, fence: m.fence})
			return true
		})
		for chunk := range slices.Chunk(some, maxBatch) {
			if err == nil {
				err = s.purge(ctx, queue, chunk, &n)
			}
		}
		return err
	})
	return n, err
}

func (s *Engine) purgeIndexed(ctx context.Context, queue string, f *store.Filter, p store.Page, n *int) error {
	ix, err := s.latest(ctx, queue)
	if err != nil || ix == nil {
		return err
	}
	for after := uint64(0); ; {
		items := ix.after(after, maxBatch)
		if len(items) == 0 {
			return nil
		}
		after = items[len(items)-1].position
		items = slices.DeleteFunc(items, func(it item) bool { return it.position > uint64(p.Until) || !matchIndex(f, &it) })
		if err := s.purge(ctx, queue, items, n); err != nil {
			return err
		}
	}
}

// purge removes and counts messages, whatever their present states.
func (s *Engine) purge(ctx context.Context, queue string, items []item, n *int) error {
	if len(items) == 0 {
		return nil
	}
	marks := make([]mark, len(items))
	for i, it := range items {
		marks[i] = mark{s.opened(queue), entry{it.identity, it.position}, it.fence, s.queueSubject(queue) + it.identity, it.seq}
	}
	err := s.removeAll(ctx, marks)
	if err == nil {
		*n += len(items)
		return nil
	}
	unsure := !errors.Is(err, errChanged) // it may have removed them
	removed := make([]bool, len(items))
	errs := make([]error, len(items))
	parallel.Do(len(items), func(i int) { removed[i], errs[i] = s.purgeOne(ctx, queue, marks[i].subject, items[i], unsure) })
	for _, is := range removed {
		if is {
			*n++
		}
	}
	return errors.Join(errs...)
}

func (s *Engine) purgeOne(ctx context.Context, queue, subject string, it item, unsure bool) (bool, error) {
	for range maxTries {
		r, err := s.read(ctx, subject)
		if unsure && r.isMark(it.position, it.fence) {
			return true, nil
		}
		if err != nil || r == nil || r.position != it.position || r.kind == removed {
			return false, err
		}
		if err := s.remove(ctx, queue, r); !errors.Is(err, errChanged) {
			return err == nil, err
		}
	}
	return false, fmt.Errorf("jetstream: stream %s: message %d: gave up after %d conflicting updates", s.name, it.position, maxTries)
}

// Claim implements [store.Inspector].
func (s *Engine) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) (taken []store.Leased, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		if err := checkQueue(errors.Join(storearg.Page(queue, p), storearg.Take(queue, p.Max, lease)), queue); err != nil {
			return err
		}
		for { // until some are taken, or all are gone: other workers may be faster
			now, err := s.now(ctx)
			if err != nil {
				return err
			}
			var page []*record
			size := 0
			err = s.visit(ctx, queue, &f, p, func(m found) bool {
				if m.free(now) {
					page = append(page, m.record)
					size += len(m.Payload)
				}
				return len(page) < p.Max && size < storearg.MaxBytes
			})
			if err != nil || len(page) == 0 {
				return err
			}
			for some := range slices.Chunk(page, part) {
				ms, failed := s.leaseAll(ctx, nil, queue, some, now, lease)
				taken, err = append(taken, ms...), errors.Join(err, failed)
			}
			if err != nil || len(taken) > 0 {
				return err
			}
		}
	})
	if len(taken) > 0 {
		err = nil // the next call returns it
	}
	return taken, err
}

// maxMoves is the most moves in a transaction: each is two messages.
const maxMoves = maxBatch / 2

// Move implements [store.Inspector].
func (s *Engine) Move(ctx context.Context, all ...store.Move) error {
	moves := all
	return s.do(ctx, func(ctx context.Context) error {
		if err := storearg.Move(moves...); err != nil {
			return err
		}
		for i := range moves {
			if err := checkQueue(nil, moves[i].Queue); err != nil {
				return err
			}
		}
		for i := range moves {
			if err := s.nameQueue(ctx, moves[i].Queue); err != nil {
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
		var lostLeases []store.Lease
		for _, m := range all {
			if lost[m.Lease] {
				lostLeases = append(lostLeases, m.Lease)
			}
		}
		return storearg.Lost(lostLeases)
	})
}

func (s *Engine) move(ctx context.Context, moves []store.Move, lost map[store.Lease]bool) error {
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
			errs[i] = err
			if r.holds(e, l.Fence) {
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
				p.behind = r.seq // it replaces its own message
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
	return fmt.Errorf("jetstream: stream %s: gave up after %d conflicting updates", s.name, maxTries)
}

// HandOver implements [store.Inspector], with an exception: it looks for the leases'
// messages before it puts, so a message that is purged in between is handed over all the
// same. A transaction with both would write each of these messages again.
func (s *Engine) HandOver(ctx context.Context, moves ...store.Move) error {
	return s.do(ctx, func(ctx context.Context) error {
		if err := storearg.Move(moves...); err != nil {
			return err
		}
		for i := range moves {
			err := checkQueue(nil, moves[i].Queue)
			if err == nil {
				err = s.nameQueue(ctx, moves[i].Queue)
			}
			if err != nil {
				return err
			}
		}
		gone, err := s.goneOrigins(ctx, moves)
		if err != nil {
			return err
		}
		puts := make([]put, 0, len(moves))
		seen := make(map[string]bool, len(moves))
		for i := range moves {
			if gone[moves[i].Lease] {
				continue
			}
			p, err := s.newPut(moves[i].Queue, &moves[i].Message)
			if err != nil {
				return err
			}
			if !seen[p.subject] { // otherwise a message with its identity is there
				puts = append(puts, p)
			}
			seen[p.subject] = true
		}
		err = s.transactAll(ctx, puts)
		if err != nil {
			return err
		}
		return storearg.Lost(storearg.Gone(moves, func(m *store.Move) bool { return !gone[m.Lease] }))
	})
}

// goneOrigins returns the moves' leases whose messages are no longer in their queues, by
// the indexes.
func (s *Engine) goneOrigins(ctx context.Context, moves []store.Move) (map[store.Lease]bool, error) {
	indexes := map[string]*index{}
	gone := map[store.Lease]bool{}
	for i := range moves {
		l := moves[i].Lease
		if l == (store.Lease{}) {
			continue
		}
		ix, ok := indexes[l.Queue]
		if !ok && len(l.Queue) <= maxQueue {
			latest, err := s.latest(ctx, l.Queue)
			if err != nil {
				return nil, err
			}
			ix = latest
		}
		indexes[l.Queue] = ix
		e, err := parseEntry(l.Entry)
		isThere := false
		if err == nil && ix != nil {
			it, has := ix.has(e.identity)
			isThere = has && it.position == e.position
		}
		if !isThere {
			gone[l] = true
		}
	}
	return gone, nil
}

// Queues implements [store.Inspector].
func (s *Engine) Queues(ctx context.Context) (names []string, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		all, err := s.textsOf(ctx, s.prefix+nameToken+"*")
		if err != nil {
			return err
		}
		there := make([]bool, len(all))
		errs := make([]error, len(all))
		parallel.Do(len(all), func(i int) { there[i], errs[i] = s.hasMessages(ctx, all[i]) })
		for i, name := range all {
			if there[i] {
				names = append(names, name)
			}
		}
		return errors.Join(errs...)
	})
	return names, err
}

// hasMessages reports whether a queue is not empty. It needs the index only if the last
// message is a mark.
func (s *Engine) hasMessages(ctx context.Context, queue string) (bool, error) {
	r, err := s.readAny(ctx, s.queueSubject(queue)+"*")
	switch {
	case err == nil && r == nil:
		return false, nil
	case err == nil && r.kind != removed:
		return true, nil
	}
	c, err := s.count(ctx, queue, store.Filter{}) // also if the last message is not weir's
	return c.Messages > 0, err
}

func (s *Engine) textsOf(ctx context.Context, subjects string) (all []string, _ error) {
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return nil, fmt.Errorf("jetstream: stream %s: %w", s.name, err)
	}
	for subject := range info.State.Subjects {
		name, err := text(subject)
		if err != nil {
			logOther(s.logger, err)
			continue
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return all, nil
}
