package storesql

import (
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// MaxInOrder is how many due messages a step of [store.InOrder.TakeInOrder] checks. It
// locks or writes each.
const MaxInOrder = 1000

// Limits of a call of TakeInOrder whose first step finds no message to take.
const (
	// StepInOrder is how many due messages each further step checks. It is small because
	// each step also looks for other keys that are due.
	StepInOrder = 50
	// StepsInOrder is how many steps a call makes before it returns no message. Consumers
	// call again after PauseInOrder, which leaves the database time for other writes.
	StepsInOrder = 5
	PauseInOrder = 20 * time.Millisecond
)

// Candidate is a due message of a queue with keys in order.
type Candidate struct {
	Position int64
	Size     int64
	Key      *string // as in the column meta; nil for a message without a key
	IsHead   bool
}

// Needs returns the keys of candidates that are not heads. [Plan] needs the heads of these
// keys.
func Needs(candidates []Candidate) (keys []string) {
	seen := map[string]bool{}
	for _, c := range candidates {
		if c.Key == nil || c.IsHead || seen[*c.Key] {
			continue
		}
		seen[*c.Key] = true
		keys = append(keys, *c.Key)
	}
	return keys
}

// KeyState is the state of a key in a queue.
type KeyState struct {
	Head  int64 // position of its head, or 0
	First int64 // lowest position
}

// OrderPlan is the work of a step.
type OrderPlan struct {
	Take   []int64           // positions to lease; with a key, they become its heads
	Park   map[int64][]int64 // positions to park, by the head for which they wait
	Become []int64           // positions of new heads that are not leased, for which Park has messages
}

// Plan decides which candidates are taken, up to limit, and which wait for the heads of
// their keys. keys has the states of the keys from [Needs].
func Plan(candidates []Candidate, keys map[string]KeyState, limit int) OrderPlan {
	p := OrderPlan{Park: map[int64][]int64{}}
	taken := map[int64]bool{}
	var size int64
	for _, c := range candidates {
		if c.Key != nil && !c.IsHead {
			head := keys[*c.Key].headOrFirst()
			if head != c.Position {
				p.Park[head] = append(p.Park[head], c.Position)
				continue
			}
		}
		if len(p.Take) < limit && size < storearg.MaxBytes {
			p.Take = append(p.Take, c.Position)
			taken[c.Position] = true
			size += c.Size
		}
	}
	for _, k := range keys {
		_, isWaitedFor := p.Park[k.First]
		if k.Head == 0 && isWaitedFor && !taken[k.First] {
			p.Become = append(p.Become, k.First)
		}
	}
	return p
}

// headOrFirst returns the head of a key, or the next one.
func (k KeyState) headOrFirst() int64 {
	if k.Head != 0 {
		return k.Head
	}
	return k.First
}

// KeysSwept is how many keys a step of [Sweeps] visits, as a text.
const KeysSwept = "1000"

const (
	sweepEvery = 10 * time.Second // between two looks at all keys
	sweepStep  = time.Second      // between two steps of a look
)

// Sweeps schedules looks for parked messages whose key has lost its head to a program of
// an earlier version. The zero value is ready for use, and safe for concurrent use.
type Sweeps struct {
	mu sync.Mutex
	of map[string]sweep // by queue
}

type sweep struct {
	next  time.Time
	after string // the look continues after this key; "" is the beginning
}

// Begin reports whether a step is due for a queue, and after which key it begins. Call
// End after such a step.
func (s *Sweeps) Begin(queue string, now time.Time) (after string, isDue bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.of[queue]
	if now.Before(w.next) {
		return "", false
	}
	if s.of == nil {
		s.of = map[string]sweep{}
	}
	s.of[queue] = sweep{next: now.Add(sweepEvery), after: w.after} // prevents concurrent looks
	return w.after, true
}

// End notes that a step has visited the keys up to after, or all keys if it is "".
func (s *Sweeps) End(queue, after string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := sweep{next: now.Add(sweepEvery), after: after}
	if after != "" {
		w.next = now.Add(sweepStep)
	}
	s.of[queue] = w
}

// KeyRounds are the rounds in which an engine visits the keys of queues, while messages
// of some keys crowd the front. The zero value is ready for use, and safe for concurrent
// use.
type KeyRounds struct {
	mu sync.Mutex
	of map[string]string // by queue: [DueKeys.Next]
}

// After returns the key after which a queue's round continues, or "" for a new round.
func (r *KeyRounds) After(queue string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	after, _ := storearg.After(store.KeyRound{After: r.of[queue]})
	return after
}

// Continue notes where a queue's round continues.
func (r *KeyRounds) Continue(queue, next string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]string{}
	}
	r.of[queue] = next
}
