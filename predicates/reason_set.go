package predicates

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"unique"
)

// ReasonSet is the set of reasons for which an element has been retried: A, B, A makes
// {A, B}. The zero value is the empty set.
//
// Sets are values: With returns another set. Equal sets are == and share their memory, so
// a set of any size costs an element only a pointer. It is safe for concurrent use.
type ReasonSet struct {
	handle unique.Handle[reasonNode]
}

// reasonNode is a set as a descending list of reasons, so that equal sets are equal
// lists.
type reasonNode struct {
	last Reason
	rest ReasonSet
}

// IsEmpty reports whether s is empty.
func (s ReasonSet) IsEmpty() bool { return s == ReasonSet{} }

// With returns s with reasons added, except zero reasons.
func (s ReasonSet) With(reasons ...Reason) ReasonSet {
	for _, r := range reasons {
		s = s.with(r)
	}
	return s
}

func (s ReasonSet) with(r Reason) ReasonSet {
	if r.IsZero() {
		return s
	}
	if s.IsEmpty() {
		return ReasonSet{unique.Make(reasonNode{last: r})}
	}
	switch node := s.handle.Value(); {
	case node.last == r:
		return s
	case compareReasons(node.last, r) < 0:
		return ReasonSet{unique.Make(reasonNode{last: r, rest: s})}
	default:
		rest := node.rest.with(r)
		if rest == node.rest {
			return s
		}
		return ReasonSet{unique.Make(reasonNode{last: node.last, rest: rest})}
	}
}

// Has reports whether r is in s.
func (s ReasonSet) Has(r Reason) bool {
	for ; !s.IsEmpty(); s = s.handle.Value().rest {
		if s.handle.Value().last == r {
			return true
		}
	}
	return false
}

// Len returns the number of reasons in s.
func (s ReasonSet) Len() (n int) {
	for ; !s.IsEmpty(); s = s.handle.Value().rest {
		n++
	}
	return n
}

// All yields the reasons in s by name.
func (s ReasonSet) All() iter.Seq[Reason] { return slices.Values(s.Slice()) }

// Slice returns the reasons in s by name, or nil if s is empty.
func (s ReasonSet) Slice() []Reason {
	var reasons []Reason
	for ; !s.IsEmpty(); s = s.handle.Value().rest {
		reasons = append(reasons, s.handle.Value().last)
	}
	slices.Reverse(reasons)
	return reasons
}

// String returns the names, as in "{KV_LOCKED, UNKNOWN}".
func (s ReasonSet) String() string {
	names := make([]string, 0, s.Len())
	for r := range s.All() {
		names = append(names, r.Name())
	}
	return "{" + strings.Join(names, ", ") + "}"
}

// MarshalJSON returns the names as an array.
func (s ReasonSet) MarshalJSON() ([]byte, error) {
	reasons := s.Slice()
	if reasons == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(reasons)
}

// UnmarshalJSON reads an array of names. The reasons do not allow any retry: see
// [Reason.UnmarshalText].
func (s *ReasonSet) UnmarshalJSON(text []byte) error {
	var reasons []Reason
	if err := json.Unmarshal(text, &reasons); err != nil {
		return err
	}
	*s = ReasonSet{}.With(reasons...)
	return nil
}

// compareReasons orders reasons by name, then by the number of their properties.
func compareReasons(a, b Reason) int {
	x, y := a.value(), b.value()
	if c := strings.Compare(x.name, y.name); c != 0 {
		return c
	}
	return x.rank() - y.rank()
}

func (r reason) rank() (n int) {
	if r.nonIdempotent {
		n++
	}
	if r.always {
		n++
	}
	return n
}
