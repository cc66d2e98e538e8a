// Package storearg helps to implement and call stores (delivery/store): checks of the
// arguments of their methods, the limit of bytes of a call, the names of the queues that
// belong to a queue ([PartOf]), two ways to list a queue ([Each] and [ReadBackward]), and
// ways to find positions in it ([ArrivedBetween] and [LastPosition]).
package storearg

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// MaxBytes limits the payloads that a call of a store returns: the message that reaches
// the limit is the last. It also limits the value of a record.
const MaxBytes = 16 << 20

// Put checks the arguments of [store.Store.Put].
func Put(queue string, ms ...store.Message) error {
	if err := Queue(queue); err != nil {
		return err
	}
	for i := range ms {
		if err := ms[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Take checks the arguments of [store.Store.Take].
func Take(queue string, limit int, lease time.Duration) error {
	switch {
	case limit < 1:
		return fmt.Errorf("store: queue %q: at most %d messages: must be at least 1", queue, limit)
	case lease <= 0:
		return fmt.Errorf("store: queue %q: a lease of %v: must be positive", queue, lease)
	default:
		return Queue(queue)
	}
}

// KeyRound checks the argument of [store.ByKey.TakeByKey].
func KeyRound(r store.KeyRound) error {
	if r.Each < 1 {
		return fmt.Errorf("store: at most %d messages of a key: must be at least 1", r.Each)
	}
	if r.Limit < 0 {
		return fmt.Errorf("store: a limit of %d leased messages of a key is negative: 0 means no limit", r.Limit)
	}
	return nil
}

// Next encodes a key for [store.KeyRound].After, so that the round continues after the
// key.
func Next(key string) string { return "k" + key }

// After decodes [store.KeyRound].After: the key after which the round continues. begun is
// false at the start of a round.
func After(r store.KeyRound) (key string, begun bool) { return strings.CutPrefix(r.After, "k") }

// Extend checks the arguments of [store.Store.Extend].
func Extend(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("store: a lease of %v: must be positive", d)
	}
	return nil
}

// Lock checks the arguments of lock.Locks.Acquire.
func Lock(name, owner string, lease time.Duration) error {
	for _, s := range []struct{ what, value string }{{"name", name}, {"owner", owner}} {
		if s.value == "" || !utf8.ValidString(s.value) || strings.ContainsRune(s.value, 0) {
			return fmt.Errorf("lock: the %s %q must be UTF-8 without NUL, and not empty", s.what, s.value)
		}
	}
	return Extend(lease)
}

// LongestDelay is the longest delay of a message; longer delays are shortened to it.
// Every engine can store the time at which it ends.
const LongestDelay = 200 * 365 * 24 * time.Hour

// ForGood is the delay of a message that its consumer sets aside, since it can neither be
// processed nor be moved: about 100 years. A store that keeps the order of keys does not
// let the key wait for a message that was released for so long: the SQL engines recognise
// it because it is due in more than ForGood/2.
const ForGood = 100 * 365 * 24 * time.Hour

// Release checks the arguments of [store.Store.Release].
func Release(delay time.Duration) error {
	if delay < 0 {
		return fmt.Errorf("store: the delay %v is negative", delay)
	}
	return nil
}

// Amend checks the arguments of [store.Store.Amend].
func Amend(a store.Amendment) error {
	switch {
	case a.Provider == nil && a.Delay == 0:
		return errors.New("store: an amendment without a change: set Provider or Delay")
	case a.Provider != nil:
		_, err := (message.Meta{Provider: *a.Provider}).ToHeaders()
		if err != nil {
			return fmt.Errorf("store: provider: %w", err)
		}
	}
	return Release(a.Delay)
}

// Page checks the arguments of [store.Inspector.List].
func Page(queue string, p store.Page) error {
	if p.Max < 1 || p.After < 0 || p.Until < 0 {
		return fmt.Errorf("store: queue %q: page %+v: Max must be at least 1, positions not negative", queue, p)
	}
	return Queue(queue)
}

// Move checks the arguments of [store.Inspector.Move] and [store.Inspector.HandOver].
func Move(moves ...store.Move) error {
	for i := range moves {
		if err := Put(moves[i].Queue, moves[i].Message); err != nil {
			return err
		}
	}
	return nil
}

// Replace checks the arguments of [store.InOrder.Replace].
func Replace(rs ...store.Replacement) error {
	for i := range rs {
		err := Put(rs[i].Lease.Queue, rs[i].Message)
		if err != nil {
			return err
		}
	}
	return nil
}

// KeyChanged returns the error of a replacement that has another key than its message.
func KeyChanged(id, key, newKey string) error {
	return fmt.Errorf("%w: message %q with the key %q cannot be replaced by one with the key %q: keep the key", message.ErrRefused, id, key, newKey)
}

// Gone returns the leases of moves whose messages are gone, each once. isThere reports
// whether the message of a move's lease is still in its queue, and was not replaced.
func Gone(moves []store.Move, isThere func(m *store.Move) bool) (gone []store.Lease) {
	seen := map[store.Lease]bool{{}: true} // without a lease there is no message to look for
	for i := range moves {
		l := moves[i].Lease
		if !seen[l] && !isThere(&moves[i]) {
			gone = append(gone, l)
		}
		seen[l] = true
	}
	return gone
}

// IsReplaced reports whether the leased message of m was replaced: its Meta.Visit is now
// stored. See [store.Move].Visit.
func IsReplaced(m *store.Move, stored int) bool { return m.Visit > 0 && stored >= m.Visit }

// IsSame reports whether two engines are the same value.
func IsSame(a, b store.Engine) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && a == b
}

// Queue checks the name of a queue.
func Queue(queue string) error {
	switch {
	case queue == "":
		return errors.New("store: the queue has no name")
	case !utf8.ValidString(queue) || strings.ContainsRune(queue, 0):
		return fmt.Errorf("store: queue %q: the name must be UTF-8 without NUL", queue)
	default:
		return nil
	}
}

// IsLost reports whether an error is a *store.LeaseError.
func IsLost(err error) bool {
	_, lost := errors.AsType[*store.LeaseError](err)
	return lost
}

// Lost returns the error for lost leases, or nil if leases is empty.
func Lost(leases []store.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	return &store.LeaseError{Lost: leases}
}

// Edits checks the arguments of [store.Tx.Edit].
func Edits(edits ...store.Edit) error {
	for i := range edits {
		e := &edits[i]
		if err := Queue(e.Queue); err != nil {
			return err
		}
		switch e.Do {
		case store.Merge:
			if err := Put(e.To, e.Entry.Message); err != nil {
				return err
			}
		case store.Purge, store.Hold, store.Release, store.Due:
		default:
			return fmt.Errorf("store: unknown action: %q", e.Do)
		}
	}
	return nil
}

// Record checks the argument of [store.Tx.Write].
func Record(r store.Record) error {
	for _, s := range []string{r.Kind, r.Name, r.Value} {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return fmt.Errorf("store: record %q of %q: must be UTF-8 without NUL", r.Name, r.Kind)
		}
	}
	if r.Kind == "" || r.Name == "" || len(r.Value) > MaxBytes {
		return fmt.Errorf("store: record %q of %q: has no name, or is larger than %d bytes", r.Name, r.Kind, MaxBytes)
	}
	return nil
}

// Each calls do for the matching messages of a queue, page by page. It ignores messages
// that arrive after it was called.
func Each(ctx context.Context, s store.Lister, queue string, f store.Filter, do func(store.Entry) error) error {
	counts, err := s.Count(ctx, queue, f)
	if err != nil || counts.Messages == 0 {
		return err
	}
	for p := (store.Page{Max: 1000, Until: counts.Last}); ; {
		entries, err := s.List(ctx, queue, f, p)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			if err := do(e); err != nil {
				return err
			}
		}
		p.After = entries[len(entries)-1].Position
	}
}
