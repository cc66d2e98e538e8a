package caller

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/internal/varint"
)

type states struct {
	used      bool               // Restore was called, so elements are restored after a restart
	durable   bool               // a complete checkpoint holds the client's identity
	asked     bool               // a snapshot was taken
	first     uint64             // number of the first checkpoint with a snapshot
	ended     []*element         // elements that ended since the last snapshot
	snapshots []snapshot         // snapshots that will release elements, ascending
	restored  map[int64]*element // restored numbers that no element has taken yet
	request   func()             // requests a checkpoint; may be nil
	requested bool               // request was called since the last snapshot
}

// snapshot is a checkpoint that may still complete.
type snapshot struct {
	checkpoint uint64
	ended      []*element
}

// stateVersion is the first byte of a state. Version 1 also had the elements' numbers.
// Version 2 lacked the time of the first request.
const stateVersion = 3

// Restore makes t take part in checkpoints. Call it before the first element, with the
// state that [Tracker.Snapshot] returned for the checkpoint to resume from, and with the
// ascending numbers of its elements. The tracker then continues with the identity and the
// numbers of its predecessor. At a fresh start both are nil.
//
// request, which may be nil, is called if a checkpoint would let elements in: see
// [Tracker.TryAdmit]. It must not wait for the checkpoint.
//
// Restore fails if the state or the numbers are damaged, the config has Refuse, or the
// tracker is already in use: with checkpoints it belongs to a single operator.
func (t *Tracker) Restore(state []byte, numbers []int64, request func()) error {
	client := exactlyonce.Client{}
	next := int64(1)
	sent := time.Time{}
	if state != nil {
		var err error
		client, next, sent, err = parseState(state)
		if err != nil {
			return fmt.Errorf("exactlyonce: state of a tracker: %w", err)
		}
	}
	last := int64(0)
	for _, n := range numbers {
		if n <= last || n >= next {
			return fmt.Errorf("exactlyonce: Restore: number %d of an element follows %d, and the next one is %d", n, last, next)
		}
		last = n
	}
	t.mu.Lock()
	var err error
	switch {
	case t.config.Refuse:
		err = errors.New("exactlyonce: Restore: the tracker has Refuse: with checkpoints, numbers must come in the order of the elements")
	case t.saved.used || t.next != 1:
		err = fmt.Errorf("exactlyonce: Restore: the tracker is in use, its next number is %d: "+
			"with checkpoints, each operator has one of its own", t.next)
	}
	if err != nil {
		t.mu.Unlock()
		return err
	}
	t.saved.used, t.saved.request = true, request
	if state != nil {
		t.client = client
		t.next = next
		t.saved.durable = true
		t.saved.restored = make(map[int64]*element, len(numbers))
	}
	for _, n := range numbers { // all at once, so that the first incomplete number cannot pass them
		e := &element{tracker: t, number: n, inDoubt: severalRequests}
		e.attempts.Store(1) // it may have been sent, so the server looks for records
		e.sentAt(sent)
		t.appendLocked(e)
		t.saved.restored[n] = e
	}
	t.unlockAndNotify()
	return nil
}

// Restored is Accepted for an element of a checkpoint. The element keeps its number; with
// number 0 it gets one. Restore the elements after [Tracker.Restore], in the order in
// which they were accepted, and before others.
func (t *Tracker) Restored(ctx context.Context, in any, number int64) context.Context {
	if number == 0 {
		return t.Accepted(ctx, in, false)
	}
	t.mu.Lock()
	e, ok := t.saved.restored[number]
	delete(t.saved.restored, number)
	t.mu.Unlock()
	if !ok {
		e = &element{tracker: t, lost: true, refused: fmt.Errorf(
			"%w: number %d of a restored element was not given to Restore, or was restored twice", ErrNoID, number)}
	}
	return context.WithValue(ctx, ctxkey.Tracked{}, e)
}

// Number returns the number of the element of ctx, for its part of a checkpoint: 0 if the
// element has no number, as a message with its own id, or -1 if it must not get one,
// because its number was lost (law X1).
func (t *Tracker) Number(ctx context.Context) int64 {
	e := t.elementIn(ctx)
	switch {
	case e == nil || !e.client.IsZero():
		return 0
	case e.lost:
		return -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.number
}

// Snapshot returns the tracker's part of a checkpoint: its identity, the next number, and
// the time when the first of its incomplete requests was sent, or now if none was sent.
// It must be taken together with the elements that have not ended, each with its number
// ([Tracker.Number]). The numbers of checkpoints ascend; they need not all complete.
//
// The input must have the same order after a restart, because a wrong number gets the
// answer of another element, or ErrMismatch if the server compares fingerprints.
func (t *Tracker) Snapshot(checkpoint uint64) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saved.requested = false
	if !t.saved.asked {
		t.saved.asked, t.saved.first = true, checkpoint
	}
	if len(t.saved.ended) > 0 { // keep no empty snapshots, because checkpoints may fail forever (law X3)
		t.saved.snapshots = append(t.saved.snapshots, snapshot{checkpoint, t.saved.ended})
		t.saved.ended = nil
	}
	first := time.Time{}
	for e := t.head; e != nil; e = e.next {
		if sent := e.sent.Load(); sent != 0 && (first.IsZero() || t.start.Add(time.Duration(sent)).Before(first)) {
			first = t.start.Add(time.Duration(sent))
		}
	}
	if first.IsZero() && t.head != nil {
		first = t.config.Clock.Now() // they are sent later, and repeated after a restart (law X1)
	}
	b := append([]byte{stateVersion}, t.client[:]...)
	b = binary.AppendUvarint(b, uint64(t.next))
	return binary.AppendUvarint(b, uint64(max(0, first.Unix()))) // 0 if all are complete
}

// Completed reports that a checkpoint is stored. It releases the numbers of elements that
// had ended before its snapshot.
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

// requestLocked returns the function that requests a checkpoint, or nil if a checkpoint
// would not let elements in.
func (t *Tracker) requestLocked() func() {
	s := &t.saved
	if s.request == nil || s.requested || t.hasNumberLocked() || len(s.ended) == 0 && (s.durable || s.asked) {
		return nil
	}
	s.requested = true
	return s.request
}

func parseState(state []byte) (client exactlyonce.Client, next int64, sent time.Time, err error) {
	r := varint.Reader{Rest: state}
	v := r.Byte()
	if r.Err == nil && v != 2 && v != stateVersion {
		return exactlyonce.Client{}, 0, time.Time{}, fmt.Errorf("version %d is unknown", v)
	}
	copy(client[:], r.Take(uint64(len(client))))
	n := r.Uvarint()
	if v == stateVersion {
		if at := r.Uvarint(); at > 0 {
			sent = time.Unix(int64(min(at, maxUnix)), 0)
		}
	}
	switch {
	case r.Err != nil:
		return exactlyonce.Client{}, 0, time.Time{}, r.Err
	case client.IsZero():
		return exactlyonce.Client{}, 0, time.Time{}, errors.New("the client is zero")
	case n < 1 || n > oncewire.MaxSequence+1:
		return exactlyonce.Client{}, 0, time.Time{}, fmt.Errorf("next number %d is not between 1 and %d", n, int64(oncewire.MaxSequence+1))
	case len(r.Rest) > 0:
		return exactlyonce.Client{}, 0, time.Time{}, fmt.Errorf("%d bytes too many", len(r.Rest))
	}
	return client, int64(n), sent, nil
}

// maxUnix is the year 9999, in seconds since 1970.
const maxUnix = 253_402_300_799
