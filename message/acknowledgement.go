package message

import (
	"strconv"
	"sync"
	"sync/atomic"
)

// acknowledgement has the settlement and history of a message of any type. Safe for
// concurrent use.
type acknowledgement struct {
	state  atomic.Uint32    // bits: see bitSettled
	part   uint32           // number of the part, from 1; 0 if it is not a part
	settle func(Settlement) // written once before use; nil for a part
	meta   *Meta            // from the source; may be nil

	// whole.of is the message that this is a part of. For a message that Watch has made
	// from a part, whole.of is that part. For other messages whole is nil.
	whole *whole

	// delivery is set by the source before it passes the message on. A part has the
	// delivery of the whole. May be nil.
	delivery Delivery
}

// Bits of acknowledgement.state.
const (
	bitSettled        = 1 << iota
	bitRejected       // settled as Rejected
	bitUnsafeToRepeat // see [NoteUnsafeToRepeat]
)

func (a *acknowledgement) isSettled() bool { return a.state.Load()&bitSettled != 0 }

// madeFrom returns the message that a is a part of, or the part from which Watch has made
// a. It returns nil for other messages.
func (a *acknowledgement) madeFrom() *acknowledgement {
	if a.whole == nil {
		return nil
	}
	return a.whole.of
}

// resolve settles the message. Law D2: the first call counts.
func (a *acknowledgement) resolve(v Settlement) {
	if a == nil {
		return
	}
	before := a.state.Or(bitSettled)
	wasSettled := before&bitSettled != 0
	if wasSettled {
		return
	}
	if v.Kind == Rejected {
		a.state.Or(bitRejected)
		isUnsafe := before&bitUnsafeToRepeat != 0
		v.UnsafeToRepeat = v.UnsafeToRepeat || isUnsafe
	}
	isPart := a.settle == nil
	if isPart {
		a.whole.add(v)
		return
	}
	a.settle(v)
}

// history returns the Meta of the message, with its present provider. Parts have their
// own ids, so that a store does not take them for one message.
func (a *acknowledgement) history() Meta {
	if a == nil || a.meta == nil {
		return Meta{}
	}
	m := *a.meta
	if a.delivery != nil {
		m.Provider = a.delivery.Provider()
	}
	if m.ID != "" {
		m.ID += a.path()
	}
	return m
}

// path returns the suffix of the id of a part, such as "#2", or "#2#1" for part 1 of part
// 2. It returns "" for other messages.
func (a *acknowledgement) path() string {
	if a == nil || a.part == 0 {
		return ""
	}
	return a.whole.of.path() + "#" + strconv.FormatUint(uint64(a.part), 10)
}

// whole is a message that was split. A message that Watch has made from a part has a
// whole with the field of only.
type whole struct {
	of *acknowledgement

	mu         sync.Mutex // guards the fields below; not held during settle
	left       int        // parts that are not settled
	settlement Settlement // of the settled parts together: see Settlement.and
}

// add notes the settlement of a part. The last part settles the whole, so that a
// redelivery of the whole does not run beside other parts.
func (w *whole) add(v Settlement) {
	w.mu.Lock()
	w.settlement = w.settlement.and(v)
	w.left--
	last, settlement := w.left == 0, w.settlement
	w.mu.Unlock()
	if last {
		w.of.resolve(settlement)
	}
}

// split returns n parts, n ≥ 2, in one piece of memory.
func (a *acknowledgement) split(n int) []acknowledgement {
	parts := make([]acknowledgement, n)
	w := &whole{of: a, left: n}
	alreadySettled := a.isSettled() // the parts then have nothing to settle
	for i := range parts {
		parts[i].part = uint32(i) + 1
		parts[i].whole = w
		parts[i].meta = a.meta
		parts[i].delivery = a.delivery
		if alreadySettled {
			parts[i].state.Store(bitSettled)
		}
	}
	return parts
}
