package predicates_test

import (
	"errors"
	"io"
	"strconv"
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

// names asserts that c names want for a; none means that it ends the chain.
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

func TestByError(t *testing.T) {
	rows := []predicates.ErrorReason{{errBusy, reasonA}, {errClosed, none}, {io.EOF, reasonB}, {errBusy, reasonC}}
	c := predicates.ByError[string](rows...)
	rows[0] = predicates.ErrorReason{}
	for name, err := range chains(errBusy) {
		t.Run(name, func(t *testing.T) { names(t, c, failedWith(err), reasonA) })
	}
	names(t, c, failedWith(errClosed), none)
	names(t, c, failedWith(errors.Join(errBusy, io.EOF)), reasonB) // that allows less
	names(t, c, failedWith(posing{io.EOF, errBusy}), reasonA)      // the first row, not the outermost error
	knowsNot(t, c, failedWith(errOther))
	knowsNot(t, c, failedWith(codes{1}))
	knowsNot(t, c, endedWith())
	knowsNot(t, predicates.ByError[string](), failedWith(errBusy))
	assert.PanicsWithValue(t, "predicates: ByError: nil target at index 1",
		func() { predicates.ByError[string](predicates.ErrorReason{Target: io.EOF}, predicates.ErrorReason{}) })
}

func TestByErrorCode(t *testing.T) {
	table := map[int]predicates.Reason{503: reasonA, 404: none}
	c := predicates.ByCode(predicates.ErrorCode[string](func(e *statusError) int { return e.code }), table)
	delete(table, 503)
	for name, err := range chains(&statusError{503}) {
		t.Run(name, func(t *testing.T) { names(t, c, failedWith(err), reasonA) })
	}
	names(t, c, failedWith(&statusError{404}), none)
	knowsNot(t, c, failedWith(&statusError{500}))
	knowsNot(t, c, failedWith(errBusy))
	knowsNot(t, c, endedWith("503"))
}

func TestByResultCode(t *testing.T) {
	c := predicates.ByCode(
		predicates.ResultCode(func(s string) (byte, bool) { return s[len(s)-1], len(s) > 1 }),
		map[byte]predicates.Reason{'a': reasonA, 'b': reasonB})
	names(t, c, endedWith("x", "xa", "xb"), reasonA) // the first that has a code
	names(t, c, endedWith("b", "xb"), reasonB)
	knowsNot(t, c, endedWith("xc", "xa")) // the first code counts, known or not
	knowsNot(t, c, endedWith("a"))
	knowsNot(t, c, endedWith())
	knowsNot(t, c, &predicates.Attempt[string]{Results: []string{"xa"}, Err: errBusy})
}

// R33, R34
func TestByServerMap(t *testing.T) {
	server := map[int]bool{600: true, 601: false}
	c := predicates.ByServerMap(predicates.ErrorCode[string](func(e *statusError) int { return e.code }),
		func(code int) bool { return server[code] }, reasonA)
	names(t, c, failedWith(&statusError{600}), reasonA)
	names(t, c, failedWith(&statusError{601}), none)
	names(t, c, failedWith(&statusError{602}), none) // not mentioned: accepted, and nobody else is asked
	knowsNot(t, c, failedWith(errBusy))
	knowsNot(t, c, endedWith())

	server[602] = true // a newer map
	names(t, c, failedWith(&statusError{602}), reasonA)
}

func TestByExceptionAndByResult(t *testing.T) {
	exception := predicates.ByException[string](predicates.ErrorIs(errBusy), reasonA)
	names(t, exception, failedWith(errBusy), reasonA)
	knowsNot(t, exception, failedWith(errOther))
	knowsNot(t, exception, endedWith())

	result := predicates.ByResult(predicates.EmptyResult[string], reasonB)
	names(t, result, endedWith(), reasonB)
	knowsNot(t, result, endedWith("x"))
	knowsNot(t, result, failedWith(errBusy))
}

func TestByPredicates(t *testing.T) {
	empty, busy := predicates.EmptyResult[string], predicates.ErrorIs(errBusy)
	tests := []struct {
		pair              predicates.AsyncRetryPredicate[string]
		onResult, onError bool
	}{
		{nil, false, false},
		{predicates.RetryIf[string](nil, nil), false, false},
		{predicates.RetryIf(empty, nil), true, false},
		{predicates.RetryIf[string](nil, busy), false, true},
		{predicates.RetryIf(empty, busy), true, true},
	}
	for i, tt := range tests {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			c := predicates.ByPredicates(tt.pair)
			if tt.onResult {
				names(t, c, endedWith(), predicates.ResultMatched)
			} else {
				knowsNot(t, c, endedWith())
			}
			if tt.onError {
				names(t, c, failedWith(errBusy), predicates.ExceptionMatched)
			} else {
				knowsNot(t, c, failedWith(errBusy))
			}
			knowsNot(t, c, endedWith("x"))
			knowsNot(t, c, failedWith(errOther))
		})
	}
}

func TestClassifierConstructorsPanic(t *testing.T) {
	code := predicates.ErrorCode[string](func(e *statusError) int { return e.code })
	yes := func(int) bool { return true }
	for want, f := range map[string]func(){
		"ByCode: nil code":           func() { predicates.ByCode[string, int](nil, nil) },
		"ByServerMap: nil code":      func() { predicates.ByServerMap[string](nil, yes, reasonA) },
		"ByServerMap: nil retry":     func() { predicates.ByServerMap(code, nil, reasonA) },
		"ByServerMap: no reason":     func() { predicates.ByServerMap(code, yes, none) },
		"ErrorCode: nil code":        func() { predicates.ErrorCode[string, *statusError, int](nil) },
		"ResultCode: nil code":       func() { predicates.ResultCode[string, int](nil) },
		"ByException: nil predicate": func() { predicates.ByException[string](nil, reasonA) },
		"ByResult: nil predicate":    func() { predicates.ByResult[string](nil, reasonA) },
		"EachError: nil classifier":  func() { predicates.EachError[string](nil) },
	} {
		assert.PanicsWithValue(t, "predicates: "+want, f)
	}
}

// Results pass a chain on every success, so that must cost nothing to speak of.
func TestClassifyingResultsAllocatesNothing(t *testing.T) {
	c := predicates.Classifiers(
		predicates.Named[string](),
		predicates.ByError[string](predicates.ErrorReason{Target: errBusy, Reason: reasonA}),
		predicates.ByCode(predicates.ErrorCode[string](func(e *statusError) int { return e.code }),
			map[int]predicates.Reason{503: reasonA}),
		predicates.ByResult(predicates.EmptyResult[string], reasonB))
	a := endedWith("x")
	assert.Zero(t, testing.AllocsPerRun(100, func() { c(a) }))
}

func BenchmarkClassifyResult(b *testing.B) {
	c := predicates.Classifiers(
		predicates.ByError[string](predicates.ErrorReason{Target: errBusy, Reason: reasonA}),
		predicates.ByResult(predicates.EmptyResult[string], reasonB))
	a := endedWith("x")
	b.ReportAllocs()
	for b.Loop() {
		c(a)
	}
}
