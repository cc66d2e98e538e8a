package predicates_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/predicates"
)

// retryIfResult and retryIfException have the parameters of the methods of a strategy.
func retryIfResult(predicates.ResultPredicate[row])  {}
func retryIfException(predicates.ExceptionPredicate) {}

// The spellings that a user will try must compile.
func TestCombinatorsInferTheirTypes(t *testing.T) {
	plainError := func(err error) bool { return err == io.EOF }
	plainResult := func(rows []row) bool { return len(rows) > 1 }
	pending := predicates.AnyResult(row.isPending)

	retryIfResult(predicates.EmptyResult)
	retryIfResult(plainResult)
	retryIfResult(pending)
	retryIfResult(predicates.Not(predicates.EmptyResult[row]))
	retryIfResult(predicates.Not(plainResult))
	retryIfResult(predicates.Not(pending))
	retryIfResult(predicates.AnyOf(predicates.EmptyResult[row], pending))
	retryIfResult(predicates.AnyOf(pending, predicates.EmptyResult[row]))
	retryIfResult(predicates.AnyOf(predicates.EmptyResult, pending))
	retryIfResult(predicates.AnyOf(pending, predicates.EmptyResult))
	retryIfResult(predicates.AnyOf(predicates.EmptyResult, plainResult))
	retryIfResult(predicates.AllOf(plainResult, predicates.Not(predicates.AnyOf(pending, plainResult))))

	retryIfException(predicates.HasException)
	retryIfException(plainError)
	retryIfException(predicates.ErrorIs(io.EOF))
	retryIfException(predicates.Not(predicates.ErrorIs(io.EOF)))
	retryIfException(predicates.Not(predicates.HasException))
	retryIfException(predicates.Not(plainError))
	retryIfException(predicates.AnyOf(predicates.ErrorIs(io.EOF), predicates.ErrorAs[*net.OpError]()))
	retryIfException(predicates.AnyOf(predicates.HasException, predicates.ErrorIs(io.EOF)))
	retryIfException(predicates.AnyOf(plainError, predicates.HasException))
	retryIfException(predicates.AllOf(predicates.HasException, predicates.Not(predicates.ErrorIs(io.EOF)), plainError))
	retryIfException(predicates.AllOf([]predicates.ExceptionPredicate{predicates.HasException, plainError}...))
}

func TestCombinators(t *testing.T) {
	const yes, no = true, false
	tests := []struct {
		answers  []bool
		any, all bool
	}{
		{[]bool{yes}, yes, yes},
		{[]bool{no}, no, no},
		{[]bool{yes, yes}, yes, yes},
		{[]bool{yes, no}, yes, no},
		{[]bool{no, yes}, yes, no},
		{[]bool{no, no}, no, no},
		{[]bool{no, no, yes}, yes, no},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.answers), func(t *testing.T) {
			ps := constants(tt.answers)
			assert.Equal(t, tt.any, predicates.AnyOf(ps...)(errBusy))
			assert.Equal(t, tt.all, predicates.AllOf(ps...)(errBusy))
			assert.Equal(t, !tt.answers[0], predicates.Not(ps[0])(errBusy))
		})
	}
}

func TestCombinatorsStopAtTheAnswer(t *testing.T) {
	var asked []string
	say := func(name string, answer bool) predicates.ExceptionPredicate {
		return func(error) bool {
			asked = append(asked, name)
			return answer
		}
	}
	assert.True(t, predicates.AnyOf(say("a", false), say("b", true), say("c", true))(errBusy))
	assert.Equal(t, []string{"a", "b"}, asked)

	asked = nil
	assert.False(t, predicates.AllOf(say("a", true), say("b", false), say("c", true))(errBusy))
	assert.Equal(t, []string{"a", "b"}, asked)
}

func TestCombinatorsKeepTheirPredicates(t *testing.T) {
	ps := constants([]bool{true})
	anyOf, allOf := predicates.AnyOf(ps...), predicates.AllOf(ps...)
	ps[0] = nil
	assert.True(t, anyOf(errBusy))
	assert.True(t, allOf(errBusy))
}

func TestCombinatorsPanic(t *testing.T) {
	tests := []struct {
		want string
		call func()
	}{
		{"predicates: Not: nil predicate", func() { predicates.Not[error, predicates.ExceptionPredicate](nil) }},
		{"predicates: Not: nil predicate", func() { predicates.Not(predicates.ResultPredicate[row](nil)) }},
		{"predicates: AnyOf: no predicates", func() { predicates.AnyOf[error, predicates.ExceptionPredicate]() }},
		{"predicates: AllOf: no predicates", func() { predicates.AllOf([]predicates.ResultPredicate[row]{}...) }},
		{"predicates: AnyOf: nil predicate at index 0", func() { predicates.AnyOf(nil, predicates.HasException) }},
		{"predicates: AnyOf: nil predicate at index 1", func() { predicates.AnyOf(predicates.HasException, nil) }},
		{"predicates: AllOf: nil predicate at index 2", func() {
			predicates.AllOf(predicates.HasException, predicates.ErrorIs(errBusy), nil)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			assert.PanicsWithValue(t, tt.want, tt.call)
		})
	}
}

func TestAllOfAndAnyOf_DeMorgan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		answers := rapid.SliceOfN(rapid.Bool(), 1, 6).Draw(t, "answers")
		ps := constants(answers)
		negated := make([]predicates.ExceptionPredicate, len(ps))
		for i, p := range ps {
			negated[i] = predicates.Not(p)
		}
		if predicates.Not(predicates.AnyOf(ps...))(errBusy) != predicates.AllOf(negated...)(errBusy) {
			t.Fatal("not any ≠ all not")
		}
		if predicates.Not(predicates.AllOf(ps...))(errBusy) != predicates.AnyOf(negated...)(errBusy) {
			t.Fatal("not all ≠ any not")
		}
	})
}

func constants(answers []bool) []predicates.ExceptionPredicate {
	ps := make([]predicates.ExceptionPredicate, len(answers))
	for i, answer := range answers {
		ps[i] = func(error) bool { return answer }
	}
	return ps
}
