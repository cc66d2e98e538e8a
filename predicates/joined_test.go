package predicates_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// Reasons named after the retries that they allow.
var (
	weak   = predicates.NewReason("WEAK", false, false)
	strong = predicates.NewReason("STRONG", true, false)
	always = predicates.NewReason("ALWAYS", true, true)
)

func withStage(s predicates.Stage, err error) error {
	return &predicates.StageError{Stage: s, Err: err}
}

// bothOrders joins two errors either way.
func bothOrders(a, b error) []error {
	return []error{errors.Join(a, b), errors.Join(b, a), fmt.Errorf("call: %w", fmt.Errorf("%w: %w", a, errors.Join(nil, b)))}
}

func TestWeakestOf(t *testing.T) {
	strongByName := predicates.NewReason("STRONG", false, false)
	for _, tt := range []struct {
		want    predicates.Reason
		reasons []predicates.Reason
	}{
		{none, nil},
		{none, []predicates.Reason{none}},
		{always, []predicates.Reason{always}},
		{strong, []predicates.Reason{always, strong, always}},
		{weak, []predicates.Reason{strong, weak, always}},
		{strongByName, []predicates.Reason{strong, none}},
		{strongByName, []predicates.Reason{none, always, strong}},
		{weak, []predicates.Reason{none, weak}},
		// A rejection had no effect, and is not a reason to retry.
		{rejected, []predicates.Reason{rejected}},
		{rejected, []predicates.Reason{rejected, rejectedToo}},
		{reasonA, []predicates.Reason{rejected, reasonA}},
		{reasonB, []predicates.Reason{reasonB, rejected}},
		{predicates.Reason{}, []predicates.Reason{rejected, {}}},
		{predicates.NewReason("A", false, false), []predicates.Reason{rejected, reasonA, {}}},
	} {
		assert.Equal(t, tt.want, decision.WeakestOf(tt.reasons...), "%v", tt.reasons)
	}
}

// R3: if a request had no effect, another request of the call may have had one.
func TestStageOfJoinedErrors(t *testing.T) {
	refused, lost := withStage(predicates.ClientDispatch, errBusy), withStage(predicates.NetworkTime, io.EOF)
	for _, err := range bothOrders(refused, lost) {
		assert.Equal(t, predicates.NetworkTime, decision.StageOf(err, predicates.Unreported), "%v", err)
		assert.Equal(t, predicates.ResponseReceived, decision.StageOf(err, predicates.ResponseReceived), "%v", err)
	}
	for _, err := range bothOrders(refused, errOther) { // an unreported request may have been sent
		assert.Equal(t, predicates.NetworkTime, decision.StageOf(err, predicates.Unreported), "%v", err)
		assert.Equal(t, predicates.ClientDispatch, decision.StageOf(err, predicates.ClientDispatch), "%v", err)
	}
	for _, err := range bothOrders(errBusy, errOther) {
		assert.Equal(t, predicates.Unreported, decision.StageOf(err, predicates.Unreported), "%v", err)
	}
	around := withStage(predicates.ClientDispatch, errors.Join(errBusy, errOther))
	assert.Equal(t, predicates.ClientDispatch, decision.StageOf(around, predicates.Unreported), "of all that it wraps")
	assert.Equal(t, predicates.ClientDispatch, decision.StageOf(errors.Join(refused), predicates.Unreported), "only one")
	chain := withStage(predicates.ClientDispatch, fmt.Errorf("token: %w", lost))
	assert.Equal(t, predicates.ClientDispatch, decision.StageOf(chain, predicates.Unreported), "the outermost of a chain")
}

func TestNamedJoinedErrors(t *testing.T) {
	c := decision.EachError(predicates.Named[string]())
	named := func(r predicates.Reason) error { return predicates.WithReason(errBusy, r) }
	for _, err := range bothOrders(named(strong), named(weak)) {
		names(t, c, failedWith(err), weak)
	}
	for _, err := range bothOrders(named(always), named(strong)) {
		names(t, c, failedWith(err), strong)
	}
	for _, err := range bothOrders(named(strong), named(none)) {
		names(t, c, failedWith(err), predicates.NewReason("STRONG", false, false))
	}
	for _, err := range bothOrders(named(strong), errOther) {
		names(t, c, failedWith(err), predicates.NewReason("STRONG", false, false))
	}
	for _, err := range bothOrders(named(none), errOther) {
		names(t, c, failedWith(err), none)
	}
	for _, err := range bothOrders(named(strong), withStage(predicates.ClientDispatch, errOther)) {
		names(t, c, failedWith(err), strong)
	}
	for _, err := range bothOrders(named(strong), withStage(predicates.NetworkTime, io.EOF)) {
		a := failedWith(err)
		names(t, c, a, predicates.NewReason("STRONG", false, false))
	}
	// In one chain the reason is about the stage it is named in, or is in.
	names(t, c, failedWith(withStage(predicates.NetworkTime, named(strong))), strong)
	names(t, c, failedWith(predicates.WithReason(withStage(predicates.NetworkTime, io.EOF), strong)), strong)
	names(t, c, failedWith(predicates.WithReason(errors.Join(io.EOF, errOther), strong)), strong) // it applies to both
}

func TestJoined_EachError(t *testing.T) {
	var seen []string
	c := decision.EachError(func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
		seen = append(seen, fmt.Sprint(a.Err))
		switch {
		case errors.Is(a.Err, io.EOF):
			a.Stage = predicates.NetworkTime
			return weak, true
		case errors.Is(a.Err, errBusy):
			a.Stage = predicates.ResponseReceived
			return strong, true
		}
		return strong, false
	})

	a := failedWith(fmt.Errorf("call: %w", errors.Join(errBusy, fmt.Errorf("read: %w", io.EOF))))
	names(t, c, a, weak)
	assert.Equal(t, predicates.ResponseReceived, a.Stage, "the latest one")
	assert.Equal(t, []string{errBusy.Error(), "read: EOF"}, seen)

	names(t, c, failedWith(errors.Join(errClosed, errBusy)), predicates.NewReason("STRONG", false, false))
	knowsNot(t, c, failedWith(errors.Join(errClosed, errClosed)))
	knowsNot(t, c, endedWith("x"))

	seen = nil
	whole := errors.Join(nil, fmt.Errorf("call: %w", errBusy))
	names(t, c, failedWith(whole), strong)
	assert.Equal(t, []string{whole.Error()}, seen, "a single one: the attempt as it is")
}

// The stage of an error applies to this error, a reported stage applies to all errors.
func TestJoined_OwnStage(t *testing.T) {
	var seen []predicates.Stage
	c := decision.EachError(func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
		seen = append(seen, a.Stage)
		return strong, true
	})
	for _, tt := range []struct {
		reported, first, sibling, whole predicates.Stage
	}{
		{predicates.Unreported, predicates.ClientDispatch, predicates.Unreported, predicates.NetworkTime}, // which it counts as
		{predicates.ClientDispatch, predicates.ClientDispatch, predicates.ClientDispatch, predicates.ClientDispatch},
		{predicates.NetworkTime, predicates.NetworkTime, predicates.NetworkTime, predicates.NetworkTime},
	} {
		seen = nil
		a := failedWith(fmt.Errorf("%w, %w", fmt.Errorf("token: %w", withStage(predicates.ClientDispatch, errBusy)), io.EOF))
		a.Stage = tt.reported
		names(t, c, a, strong)
		assert.Equal(t, []predicates.Stage{tt.first, tt.sibling}, seen, "%v", tt.reported)
		assert.Equal(t, tt.whole, a.Stage, "%v", tt.reported)
	}

	alone := failedWith(withStage(predicates.NetworkTime, io.EOF))
	names(t, c, alone, strong)
	assert.Equal(t, predicates.NetworkTime, alone.Stage)

	panics := decision.EachError(func(*predicates.Attempt[string]) (predicates.Reason, bool) { panic("no") })
	a := failedWith(errors.Join(errBusy, withStage(predicates.NetworkTime, io.EOF)))
	a.Stage = predicates.ClientDispatch
	assert.Panics(t, func() { panics(a) })
	assert.Equal(t, predicates.NetworkTime, a.Stage, "the evidence is not lost")
}

// R3: the request of an error that no classifier knows may have taken effect.
func TestJoined_UnknownErrorBesideOthers(t *testing.T) {
	strongByName := predicates.NewReason("STRONG", false, false)
	table := predicates.ByException[string](predicates.ErrorIs(errBusy), strong)
	for name, c := range map[string]classifier{
		"EachError":   decision.EachError(table),
		"Classifiers": predicates.Classifiers(table, predicates.ByCode(codeOf, map[int]predicates.Reason{1: weak})),
		"Named":       predicates.Named[string](),
		"ByCode":      predicates.ByCode(codeOf, map[int]predicates.Reason{503: strong}),
		"ByException": predicates.ByException[string](predicates.ErrorIs(errBusy), strong),
	} {
		c = decision.EachError(c) // as a policy does
		known := predicates.WithReason(withStage(predicates.ClientDispatch, errors.Join(errBusy, &statusError{503})), strong)
		if name != "Named" {
			known = map[bool]error{true: errBusy, false: &statusError{503}}[name != "ByCode"]
		}
		names(t, c, failedWith(known), strong)
		for _, err := range bothOrders(known, errOther) {
			a := failedWith(err)
			names(t, c, a, strongByName)
			assert.NotEqual(t, predicates.ClientDispatch, a.Stage, name)
			names(t, decision.EachError(c, errClosed, errOther), failedWith(err), strong) // unless it is named
			names(t, decision.EachError(c, errClosed), failedWith(err), strongByName)

			a = failedWith(err)
			a.Stage = predicates.ClientDispatch // reported by the function: not sent
			names(t, c, a, strong)
		}
	}
}

func TestHarmlessErrors(t *testing.T) {
	c := decision.EachError(predicates.Named[string](), errOther)
	named := predicates.WithReason(errBusy, strong)
	strongByName := predicates.NewReason("STRONG", false, false)
	for name, tt := range map[string]struct {
		err  error
		want predicates.Reason
	}{
		"a sentinel":               {fmt.Errorf("%w: %w", errOther, named), strong},
		"wrapped":                  {errors.Join(named, fmt.Errorf("lookup: %w", errOther)), strong},
		"in a join of its own":     {errors.Join(named, fmt.Errorf("%w: %w", errOther, io.EOF)), strongByName},
		"beside two":               {errors.Join(errOther, named, io.EOF), strongByName},
		"that says it was sent":    {errors.Join(named, withStage(predicates.NetworkTime, errOther)), strongByName},
		"that wraps an unknown":    {errors.Join(named, posing{errOther, io.EOF}), strongByName},
		"around all":               {posing{errOther, errors.Join(named, io.EOF)}, strongByName},
		"with a reason, by itself": {predicates.WithReason(errOther, strong), strong},
	} {
		t.Run(name, func(t *testing.T) { names(t, c, failedWith(tt.err), tt.want) })
	}
	a := failedWith(errors.Join(errOther, errOther))
	knowsNot(t, c, a)
	assert.NotEqual(t, predicates.ClientDispatch, a.Stage, "nothing is known of such a call")

	harmless := []error{errOther}
	c = decision.EachError(predicates.Named[string](), harmless...)
	harmless[0] = nil
	names(t, c, failedWith(errors.Join(errOther, named)), strong)
	assert.PanicsWithValue(t, "decision: EachError: nil error at index 1",
		func() { decision.EachError(predicates.Named[string](), errOther, nil) })
}

// posing is an error whose Is matches another error.
type posing struct{ as, err error }

func (e posing) Error() string        { return "posing" }
func (e posing) Is(target error) bool { return target == e.as }
func (e posing) Unwrap() error        { return e.err }

// silent is a ServerPushback without a demand.
type silent struct{ err error }

func (e silent) Error() string                        { return "silent" }
func (e silent) Unwrap() error                        { return e.err }
func (e silent) RetryPushback() (time.Duration, bool) { return 0, false }

func TestPushbackOfJoinedErrors(t *testing.T) {
	demand := func(d time.Duration) error { return predicates.WithPushback(errBusy, d) }
	for _, tt := range []struct {
		a, b error
		want time.Duration
	}{
		{demand(time.Second), demand(time.Minute), time.Minute},
		{demand(time.Minute), demand(decision.Never), decision.Never},
		{silent{}, demand(decision.Never), decision.Never},
		{silent{}, demand(0), 0},
		{silent{demand(time.Second)}, errOther, time.Second},
	} {
		for _, err := range bothOrders(tt.a, tt.b) {
			got, ok := decision.PushbackOf(failedWith(err))
			assert.True(t, ok, "%v", err)
			assert.Equal(t, tt.want, got, "%v", err)
		}
	}
	_, ok := decision.PushbackOf(failedWith(errors.Join(silent{}, silent{errOther})))
	assert.False(t, ok)
	got, _ := decision.PushbackOf(failedWith(predicates.WithPushback(demand(time.Hour), time.Second)))
	assert.Equal(t, time.Second, got, "the outermost of a chain")
}
