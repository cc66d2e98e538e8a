package exactlyonce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weirflow/weir/internal/varint"
)

// states is what a tracker knows of checkpoints.
type states struct {
	durable   bool               // a complete checkpoint holds the client's identity
	asked     bool               // a snapshot was taken
	first     uint64             // the checkpoint of the first one
	ended     []*element         // since the last snapshot
	snapshots []snapshot         // those that release something, by checkpoint, ascending
	restored  map[int64]*element // numbers of the state that no element has taken yet
}

// snapshot is a checkpoint that may still complete. It no longer holds these elements.
type snapshot struct {
	checkpoint uint64
	ended      []*element
}

// stateVersion is the first byte of a state.
const stateVersion = 1

// Snapshot returns the tracker's part of a checkpoint: its identity, the next number, and the numbers of elements that have
// not ended. It goes into the same checkpoint as those elements, each with its number ([Tracker.Number]), and is taken at the
// same moment. Checkpoints have ascending numbers; not all need complete.
//
// After a restart a new tracker is restored from the state ([Tracker.Restore]), and so are the elements, with their numbers
// ([Tracker.Restored]). The input after them has to come in the same order as before: each element then gets the number that
// it had. (An element in another's place would have the answer of that one, or ErrMismatch where the called side compares
// fingerprints.)
func (t *Tracker) Snapshot(checkpoint uint64) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.saved.restored { // the checkpoint that it came from held more than it should
		e.ended.Store(true)
		t.saved.ended = append(t.saved.ended, e)
	}
	t.saved.restored = nil
	if !t.saved.asked {
		t.saved.asked, t.saved.first = true, checkpoint
	}
	if len(t.saved.ended) > 0 { // else it is not kept: checkpoints may fail for ever (law X3)
		t.saved.snapshots = append(t.saved.snapshots, snapshot{checkpoint, t.saved.ended})
		t.saved.ended = nil
	}

	b := append([]byte{stateVersion}, t.client[:]...)
	b = binary.AppendUvarint(b, uint64(t.next))
	count := 0
	for e := t.head; e != nil; e = e.next {
		if !e.ended.Load() {
			count++
		}
	}
	b = binary.AppendUvarint(b, uint64(count))
	last := int64(0)
	for e := t.head; e != nil; e = e.next {
		if !e.ended.Load() {
			b = binary.AppendUvarint(b, uint64(e.number-last))
			last = e.number
		}
	}
	return b
}

// Completed reports that a checkpoint is stored: numbers of elements that had ended before its snapshot are released. Those of
// earlier checkpoints that did not complete are covered.
func (t *Tracker) Completed(checkpoint uint64) {
	t.mu.Lock()
	t.saved.durable = t.saved.durable || t.saved.asked && checkpoint >= t.saved.first
	for len(t.saved.snapshots) > 0 && t.saved.snapshots[0].checkpoint <= checkpoint {
		for _, e := range t.saved.snapshots[0].ended {
			t.releaseLocked(e)
		}
		t.saved.snapshots = slices.Delete(t.saved.snapshots, 0, 1)
	}
	t.unlockAndNotify()
}

// Number returns the number of the element that ctx belongs to, for its part of a checkpoint; 0 if it has none.
func (t *Tracker) Number(ctx context.Context) int64 {
	e := t.elementIn(ctx)
	if e == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.number
}

// Restore makes t the tracker whose state was stored in a complete checkpoint: it continues with its identity and its numbers.
// It is called before the first element. It fails if the state is damaged, if an element was accepted before, or if
// Checkpoints is not set.
func (t *Tracker) Restore(state []byte) error {
	client, next, numbers, err := parseState(state)
	if err != nil {
		return fmt.Errorf("exactlyonce: state of a tracker: %w", err)
	}
	t.mu.Lock()
	switch {
	case !t.config.Checkpoints:
		err = errors.New("exactlyonce: Restore: the tracker has no Checkpoints")
	case t.next != 1 || t.saved.asked || t.saved.durable:
		err = fmt.Errorf("exactlyonce: Restore: the tracker is in use, its next number is %d", t.next)
	}
	if err != nil {
		t.mu.Unlock()
		return err
	}
	t.client, t.next, t.saved.durable = client, next, true
	t.saved.restored = make(map[int64]*element, len(numbers))
	for _, n := range numbers { // all at once: the first incomplete number must not pass one that is not restored yet
		e := &element{tracker: t, number: n}
		t.appendLocked(e)
		t.saved.restored[n] = e
	}
	t.unlockAndNotify()
	return nil
}

// Restored is Accepted for an element of a checkpoint. It keeps the number that it had; with 0 it gets one. Elements are restored
// after [Tracker.Restore], in the order in which they were accepted, and before others are accepted.
func (t *Tracker) Restored(ctx context.Context, in any, number int64) context.Context {
	if number == 0 {
		return t.Accepted(ctx, in, false)
	}
	t.mu.Lock()
	e, ok := t.saved.restored[number]
	delete(t.saved.restored, number)
	t.mu.Unlock()
	if !ok {
		e = &element{tracker: t, refused: fmt.Errorf(
			"%w: number %d of a restored element is not in the state of the tracker, or was restored twice", ErrNoID, number)}
	}
	return context.WithValue(ctx, elementKey{}, e)
}

// parseState reads what Snapshot has written. The numbers are ascending, from 1 and below next.
func parseState(state []byte) (client Client, next int64, numbers []int64, err error) {
	r := varint.Reader{Rest: state}
	if v := r.Byte(); r.Err == nil && v != stateVersion {
		return Client{}, 0, nil, fmt.Errorf("version %d is unknown", v)
	}
	copy(client[:], r.Take(uint64(len(client))))
	n := r.Uvarint()
	count := r.Uvarint()
	switch {
	case r.Err != nil:
		return Client{}, 0, nil, r.Err
	case client.IsZero():
		return Client{}, 0, nil, errors.New("the client is zero")
	case n < 1 || n > MaxSequence+1:
		return Client{}, 0, nil, fmt.Errorf("next number %d is not between 1 and %d", n, int64(MaxSequence+1))
	case count > uint64(len(r.Rest)):
		return Client{}, 0, nil, fmt.Errorf("%d numbers in %d bytes", count, len(r.Rest))
	}
	last := uint64(0)
	for range count {
		delta := r.Uvarint()
		if r.Err != nil {
			return Client{}, 0, nil, r.Err
		}
		if delta < 1 || delta >= n-last {
			return Client{}, 0, nil, fmt.Errorf("a number %d above %d, where %d is the next", delta, last, n)
		}
		last += delta
		numbers = append(numbers, int64(last))
	}
	if len(r.Rest) > 0 {
		return Client{}, 0, nil, fmt.Errorf("%d bytes too many", len(r.Rest))
	}
	return client, int64(n), numbers, nil
}
