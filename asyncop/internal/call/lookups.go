package call

// ReservationKey is the context key of the [Reservation] of an attempt.
type ReservationKey struct{}

// Reservation promises an attempt the outcome of a running call for other elements, or an
// answer of a cache.
type Reservation interface {
	// Joins reports whether a call is running. Otherwise the outcome is known.
	Joins() bool
	// Release ends an unused promise.
	Release()
}

// Lookups is a function whose calls and answers are for all elements with the same key.
// The loop calls its methods. They may panic.
type Lookups[IN any] interface {
	// Reserve returns the outcome for an attempt that needs no call of its own, or nil.
	// number is the attempt's.
	Reserve(in IN, number int) Reservation
	// LookupKey returns the key of an element. ok is false if elements with this key do
	// not share calls.
	LookupKey(in IN) (key any, ok bool)
	// Changes returns a number that grows when Reserve may return an outcome in place of
	// nil.
	Changes() int64
}

// Sharing has the lookups of the function that embeds it: see [LookupsOf]. Package lookup
// embeds it by an unexported alias, so users do not see the lookups.
type Sharing[IN any] struct {
	function any
	lookups  Lookups[IN]
}

// SharedBy returns the Sharing of a function.
func SharedBy[IN any](function any, l Lookups[IN]) Sharing[IN] { return Sharing[IN]{function, l} }

// lookupsOf returns the lookups if s was made for this function, and nil otherwise. A
// type that embeds the function has this method, too, but it may look up other keys.
func (s *Sharing[IN]) lookupsOf(function any) Lookups[IN] {
	if function != s.function {
		return nil
	}
	return s.lookups
}

type sharer[IN any] interface {
	lookupsOf(function any) Lookups[IN]
}

// LookupsOf returns the lookups of a function, or nil.
func LookupsOf[IN any](function any) Lookups[IN] {
	s, ok := function.(sharer[IN])
	if !ok {
		return nil
	}
	return s.lookupsOf(function)
}
