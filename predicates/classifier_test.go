package predicates_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

var none predicates.Reason

type classifier = predicates.Classifier[string]

func failedWith(err error) *predicates.Attempt[string] {
	return &predicates.Attempt[string]{Number: 1, Err: err}
}

func endedWith(results ...string) *predicates.Attempt[string] {
	return &predicates.Attempt[string]{Number: 1, Results: results}
}

// names asserts that c returns want for a. The zero Reason means that c ends the chain.
func names(t *testing.T, c classifier, a *predicates.Attempt[string], want predicates.Reason) {
	t.Helper()
	r, ok := c(a)
	assert.True(t, ok, "err %v, results %v", a.Err, a.Results)
	assert.Equal(t, want, r, "err %v, results %v", a.Err, a.Results)
}

func knowsNot(t *testing.T, c classifier, a *predicates.Attempt[string]) {
	t.Helper()
	_, ok := c(a)
	assert.False(t, ok, "err %v, results %v", a.Err, a.Results)
}

func TestClassifiersFirstOneWins(t *testing.T) {
	asked := ""
	say := func(name string, r predicates.Reason, ok bool) classifier {
		return func(*predicates.Attempt[string]) (predicates.Reason, bool) {
			asked += name
			return r, ok
		}
	}
	tests := []struct {
		chain  []classifier
		want   predicates.Reason
		wantOK bool
		asked  string
	}{
		{nil, none, false, ""},
		{[]classifier{say("1", reasonA, false), say("2", reasonB, false)}, none, false, "12"},
		{[]classifier{say("1", none, false), say("2", reasonB, true), say("3", reasonA, true)}, reasonB, true, "12"},
		{[]classifier{say("1", none, true), say("2", reasonB, true)}, none, true, "1"}, // accepted for good
	}
	for _, tt := range tests {
		asked = ""
		r, ok := predicates.Classifiers(tt.chain...)(endedWith())
		assert.Equal(t, tt.want, r)
		assert.Equal(t, tt.wantOK, ok)
		assert.Equal(t, tt.asked, asked)
	}

	chain := []classifier{say("1", reasonA, true)}
	c := predicates.Classifiers(chain...)
	chain[0] = nil
	names(t, c, endedWith(), reasonA)
	assert.PanicsWithValue(t, "predicates: Classifiers: nil classifier at index 1",
		func() { predicates.Classifiers(say("1", none, false), nil) })
}

func TestNamed(t *testing.T) {
	c := predicates.Named[string]()
	for _, err := range chains(predicates.WithReason(errBusy, reasonC)) {
		names(t, c, failedWith(err), reasonC)
	}
	names(t, c, failedWith(predicates.WithReason(errBusy, none)), none)
	knowsNot(t, c, failedWith(errBusy))
	knowsNot(t, c, endedWith("x"))
}

// codeOf returns the code of a statusError, or the last letter of a result.
func codeOf(a *predicates.Attempt[string]) (int, bool) {
	if e, ok := errors.AsType[*statusError](a.Err); ok {
		return e.code, true
	}
	if a.Err == nil && len(a.Results) > 0 {
		return int(a.Results[0][0]), true
	}
	return 0, false
}

func TestClassifier_ByCode(t *testing.T) {
	table := map[int]predicates.Reason{503: reasonA, 404: none, 'b': reasonB}
	c := predicates.ByCode(codeOf, table)
	delete(table, 503)
	for name, err := range chains(&statusError{503}) {
		t.Run(name, func(t *testing.T) { names(t, c, failedWith(err), reasonA) })
	}
	names(t, c, failedWith(&statusError{404}), none)
	names(t, c, endedWith("b"), reasonB)
	knowsNot(t, c, failedWith(&statusError{500}))
	knowsNot(t, c, failedWith(errBusy))
	knowsNot(t, c, endedWith("503"))
}

func TestClassifier_ByExceptionAndByResult(t *testing.T) {
	exception := predicates.ByException[string](predicates.ErrorIs(errBusy), reasonA)
	names(t, exception, failedWith(errBusy), reasonA)
	knowsNot(t, exception, failedWith(errOther))
	knowsNot(t, exception, endedWith())

	result := predicates.ByResult(predicates.EmptyResult[string], reasonB)
	names(t, result, endedWith(), reasonB)
	knowsNot(t, result, endedWith("x"))
	knowsNot(t, result, failedWith(errBusy))
}

func TestClassifierConstructorsPanic(t *testing.T) {
	for want, f := range map[string]func(){
		"ByCode: nil code":           func() { predicates.ByCode[string, int](nil, nil) },
		"ByException: nil predicate": func() { predicates.ByException[string](nil, reasonA) },
		"ByResult: nil predicate":    func() { predicates.ByResult[string](nil, reasonA) },
	} {
		assert.PanicsWithValue(t, "predicates: "+want, f)
	}
}

// A chain is called for the results of every success, so it must be cheap.
func TestClassifyingResultsAllocatesNothing(t *testing.T) {
	c := predicates.Classifiers(
		predicates.Named[string](),
		predicates.ByException[string](predicates.ErrorIs(errBusy), reasonA),
		predicates.ByCode(codeOf, map[int]predicates.Reason{503: reasonA}),
		predicates.ByResult(predicates.EmptyResult[string], reasonB))
	a := endedWith("x")
	assert.Zero(t, testing.AllocsPerRun(100, func() { c(a) }))
}

func BenchmarkClassifyResult(b *testing.B) {
	c := predicates.Classifiers(
		predicates.ByException[string](predicates.ErrorIs(errBusy), reasonA),
		predicates.ByResult(predicates.EmptyResult[string], reasonB))
	a := endedWith("x")
	b.ReportAllocs()
	for b.Loop() {
		c(a)
	}
}
