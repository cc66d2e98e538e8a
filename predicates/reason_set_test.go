package predicates_test

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/predicates"
)

// R10, and a defect of a client that keeps a sorted search over unsorted reasons.
func TestReasonSetSlice_OfABA(t *testing.T) {
	var s predicates.ReasonSet
	assert.True(t, s.IsEmpty())
	assert.Equal(t, "{}", s.String())
	assert.Nil(t, s.Slice())

	s = s.With(reasonB).With(reasonA).With(reasonB)
	assert.Equal(t, 2, s.Len())
	assert.Equal(t, []predicates.Reason{reasonA, reasonB}, s.Slice())
	assert.Equal(t, "{A, B}", s.String())
	assert.True(t, s.Has(reasonA))
	assert.False(t, s.Has(reasonC))
	assert.Equal(t, s, s.With(predicates.Reason{}))
	assert.False(t, s.Has(predicates.Reason{}))
	assert.LessOrEqual(t, unsafe.Sizeof(s), unsafe.Sizeof(uintptr(0)), "a set costs a pointer")
}

// Reasons with the same name but different properties are different reasons.
func TestReasonSetTellsPropertiesApart(t *testing.T) {
	same := []predicates.Reason{
		predicates.NewReason("A", true, true), predicates.NewReason("A", false, false), reasonA,
	}
	s := reasonSet(same...)
	slices.Reverse(same)
	assert.Equal(t, 3, s.Len())
	assert.Equal(t, s, reasonSet(same...))
}

func reasonSet(reasons ...predicates.Reason) predicates.ReasonSet {
	return predicates.ReasonSet{}.With(reasons...)
}

func drawReasons(t *rapid.T, label string) []predicates.Reason {
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) predicates.Reason {
		n := rapid.Bool().Draw(t, "n")
		return predicates.NewReason(rapid.StringMatching(`[A-D]`).Draw(t, "name"), n, n && rapid.Bool().Draw(t, "a"))
	})).Draw(t, label)
}

func TestReasonSetAllAndLen_IsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		added := drawReasons(t, "added")
		model := map[predicates.Reason]bool{}
		var s predicates.ReasonSet
		for _, r := range added {
			before, was := s, s.Has(r)
			s = s.With(r)
			if was != model[r] || (s == before) != was {
				t.Fatalf("adding %v to %v: has %t, model %t", r, before, was, model[r])
			}
			model[r] = true
		}
		if s.Len() != len(model) || s.IsEmpty() != (len(model) == 0) {
			t.Fatalf("%v has %d reasons, not %d", s, s.Len(), len(model))
		}
		names := []string{}
		for r := range s.All() {
			if !model[r] {
				t.Fatalf("%v is in %v", r, s)
			}
			names = append(names, r.Name())
		}
		if !slices.IsSorted(names) || s.String() != "{"+strings.Join(names, ", ")+"}" {
			t.Fatalf("order: %v", s)
		}
		shuffled := rapid.Permutation(slices.Collect(maps.Keys(model))).Draw(t, "shuffled")
		if reasonSet(shuffled...) != s {
			t.Fatalf("%v depends on the order", s)
		}
	})
}

func TestReasonSetIsSafeForConcurrentUse(t *testing.T) {
	reasons := []predicates.Reason{reasonA, reasonB, reasonC, predicates.Unknown}
	want := reasonSet(reasons...)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				var s predicates.ReasonSet
				for j := range reasons {
					s = s.With(reasons[(i+j)%len(reasons)])
				}
				if s != want {
					t.Errorf("%v, not %v", s, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestReasonSetAllocatesNothingForKnownSets(t *testing.T) {
	kept := reasonSet(reasonA, reasonB)
	allocs := testing.AllocsPerRun(100, func() {
		if reasonSet(reasonB, reasonA, reasonB) != kept {
			t.Error("sets differ")
		}
	})
	assert.Zero(t, allocs)
}

func BenchmarkReasonSetWith(b *testing.B) {
	for name, s := range map[string]predicates.ReasonSet{
		"empty": {}, "there": reasonSet(reasonA), "second": reasonSet(reasonB),
	} {
		b.Run("set="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.With(reasonA)
			}
		})
	}
}
