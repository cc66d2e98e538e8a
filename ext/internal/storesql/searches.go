package storesql

import (
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// AheadInOrder is how many due messages a step of TakeInOrder reads in search of messages
// without a key. They come after the messages that the step parks. Reading a message
// costs far less than parking it.
const AheadInOrder = 1000

// searchShare bounds how often a search begins again. For example, a search that took a
// second begins again ten seconds after it began, or later.
const searchShare = 10

// Place is a place in the order in which the messages of a queue are due. The zero place
// is before all messages.
type Place struct {
	At       int64 // in the unit of the engine
	Position int64
}

// IsBefore reports whether p comes before another place.
func (p Place) IsBefore(other Place) bool {
	if p.At != other.At {
		return p.At < other.At
	}
	return p.Position < other.Position
}

// Ahead are the due messages that a step of a search has read.
type Ahead struct {
	Free  []Place // messages without a key
	To    Place   // where the next step begins
	IsEnd bool    // the step has read all messages that were due
}

// Limit leaves messages without a key beyond the first ones to the next step.
func (a *Ahead) Limit(limit int) {
	if len(a.Free) <= limit {
		return
	}
	a.Free, a.IsEnd = a.Free[:limit], false
	if last := a.Free[limit-1]; last.IsBefore(a.To) {
		a.To = last
	}
}

// Positions returns the positions of the messages without a key.
func (a *Ahead) Positions() []int64 {
	positions := make([]int64, len(a.Free))
	for i, p := range a.Free {
		positions[i] = p.Position
	}
	return positions
}

// Searches are the searches for messages without a key in queues whose front is crowded
// by messages that wait for their keys. A search reads each message once. When it has
// reached the end it continues with the messages that are due since, and begins again
// after a while, since a message that was held may come before the place that it has
// reached. The zero value is ready for use, and safe for concurrent use.
type Searches struct {
	mu sync.Mutex
	of map[string]search // by queue
}

type search struct {
	to          Place
	begun       time.Time
	took        time.Duration // until the end, if isEnded
	isEnded     bool          // it has reached the end once
	isKeysFirst bool          // in the last call
}

// Begin returns the place after which the next step of a queue's search begins.
func (s *Searches) Begin(queue string, now time.Time) Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.of[queue]
	isOld := of.isEnded && now.Sub(of.begun) >= searchShare*of.took
	if of.begun.IsZero() || isOld {
		of = search{begun: now, isKeysFirst: of.isKeysFirst}
		s.set(queue, of)
	}
	return of.to
}

// Continue notes that a step has searched the messages up to a place, and has taken some
// of the messages without a key. If it has left others, the next step takes them, unless
// this one could take no message at all.
func (s *Searches) Continue(queue string, ahead *Ahead, taken int, now time.Time) {
	if taken > 0 && taken < len(ahead.Free) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.of[queue]
	if of.to.IsBefore(ahead.To) { // a concurrent step may have come further
		of.to = ahead.To
	}
	if ahead.IsEnd && !of.isEnded {
		of.isEnded, of.took = true, now.Sub(of.begun)
	}
	s.set(queue, of)
}

// TakeByTurns calls ofKeys, which takes messages of keys, and withoutKey, which searches
// for messages without a key, until one has taken messages. The calls for a queue
// alternate which is first.
func (s *Searches) TakeByTurns(queue string, ofKeys, withoutKey func() ([]store.Leased, error)) ([]store.Leased, error) {
	first, second := ofKeys, withoutKey
	if !s.switchTurn(queue) {
		first, second = withoutKey, ofKeys
	}
	taken, err := first()
	if err != nil || len(taken) > 0 {
		return taken, err
	}
	return second()
}

// switchTurn reports whether this call takes messages of keys first.
func (s *Searches) switchTurn(queue string) (isKeysFirst bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.of[queue]
	of.isKeysFirst = !of.isKeysFirst
	s.set(queue, of)
	return of.isKeysFirst
}

func (s *Searches) set(queue string, to search) {
	if s.of == nil {
		s.of = map[string]search{}
	}
	s.of[queue] = to
}
