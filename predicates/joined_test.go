package predicates_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

// Reasons by what they allow.
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
	return []error{errors.Join(a, b), errors.Join(b, a), fmt.Errorf("call: %w, %w: %w", errOther, a, b)}
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
		// A rejection had no effect, and is no reason to try again.
		{rejected, []predicates.Reason{rejected}},
		{rejected, []predicates.Reason{rejected, rejectedToo}},
		{reasonA, []predicates.Reason{rejected, reasonA}},
		{reasonB, []predicates.Reason{reasonB, rejected}},
		{predicates.Reason{}, []predicates.Reason{rejected, {}}},
		{predicates.NewReason("A", false, false), []predicates.Reason{rejected, reasonA, {}}},
	} {
		assert.Equal(t, tt.want, predicates.WeakestOf(tt.reasons...), "%v", tt.reasons)
	}
}

// R3: what one request of a call did not do another may have done.
func TestStageOfJoinedErrors(t *testing.T) {
	refused, lost := withStage(predicates.ClientDispatch, errBusy), withStage(predicates.NetworkTime, io.EOF)
	for _, err := range bothOrders(refused, lost) {
		assert.Equal(t, predicates.NetworkTime, predicates.StageOf(err, predicates.Unreported), "%v", err)
		assert.Equal(t, predicates.ResponseReceived, predicates.StageOf(err, predicates.ResponseReceived), "%v", err)
	}
	for _, err := range bothOrders(refused, errOther) {
		assert.Equal(t, predicates.ClientDispatch, predicates.StageOf(err, predicates.Unreported), "%v", err)
	}
	chain := withStage(predicates.ClientDispatch, fmt.Errorf("token: %w", lost))
	assert.Equal(t, predicates.ClientDispatch, predicates.StageOf(chain, predicates.Unreported), "the outermost of a chain")
}

func TestNamedJoinedErrors(t *testing.T) {
	c := predicates.Named[string]()
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
	for _, err := range bothOrders(named(strong), errOther) { // a comment
		names(t, c, failedWith(err), strong)
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
}

func TestEachError(t *testing.T) {
	var seen []string
	c := predicates.EachError(func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
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
	}, func(err error) bool { return err == io.EOF || err == errBusy || err == errClosed })

	a := failedWith(fmt.Errorf("%w: %w", errOther, errors.Join(errBusy, io.EOF)))
	names(t, c, a, weak)
	assert.Equal(t, predicates.ResponseReceived, a.Stage, "the latest one")
	assert.Equal(t, []string{errBusy.Error(), io.EOF.Error()}, seen)

	names(t, c, failedWith(errors.Join(errClosed, errBusy)), predicates.NewReason("STRONG", false, false))
	knowsNot(t, c, failedWith(errors.Join(errClosed, errClosed)))

	seen = nil
	whole := fmt.Errorf("%w: %w", errOther, errBusy)
	names(t, c, failedWith(whole), strong)
	assert.Equal(t, []string{whole.Error()}, seen, "one relevant error: the attempt as it is")
	knowsNot(t, c, endedWith("x"))
}

// What one error says about the stage is its own evidence.
func TestEachErrorHasItsOwnStage(t *testing.T) {
	var seen []predicates.Stage
	c := predicates.EachError(func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
		seen = append(seen, a.Stage)
		return strong, true
	}, func(err error) bool {
		_, at := err.(*predicates.StageError)
		return at || err == io.EOF
	})
	for _, tt := range []struct {
		reported, sibling, whole predicates.Stage
	}{
		{predicates.Unreported, predicates.Unreported, predicates.NetworkTime}, // which it counts as
		{predicates.ClientDispatch, predicates.Unreported, predicates.NetworkTime},
		{predicates.NetworkTime, predicates.NetworkTime, predicates.NetworkTime},
	} {
		seen = nil
		a := failedWith(fmt.Errorf("%w, %w", fmt.Errorf("token: %w", withStage(predicates.ClientDispatch, errBusy)), io.EOF))
		a.Stage = tt.reported
		names(t, c, a, strong)
		assert.Equal(t, []predicates.Stage{max(tt.reported, predicates.ClientDispatch), tt.sibling}, seen, "%v", tt.reported)
		assert.Equal(t, tt.whole, a.Stage, "%v", tt.reported)
	}
}

func TestByStage(t *testing.T) {
	c := predicates.ByStage[string](predicates.ClientDispatch, strong)
	at := func(reported predicates.Stage, err error) *predicates.Attempt[string] {
		a := failedWith(err)
		a.Stage = reported
		return a
	}
	names(t, c, at(predicates.ClientDispatch, errBusy), strong)
	names(t, c, at(predicates.Unreported, withStage(predicates.ClientDispatch, errBusy)), strong)
	knowsNot(t, c, at(predicates.Unreported, errBusy))
	knowsNot(t, c, at(predicates.NetworkTime, withStage(predicates.ClientDispatch, errBusy)))
	knowsNot(t, c, at(predicates.ClientDispatch, withStage(predicates.NetworkTime, errBusy)))
	result := endedWith("x")
	result.Stage = predicates.ClientDispatch
	knowsNot(t, c, result)
	assert.PanicsWithValue(t, "predicates: ByStage: no stage to look for: unreported",
		func() { predicates.ByStage[string](predicates.Unreported, strong) })
	assert.PanicsWithValue(t, "predicates: ByStage: no stage to look for: Stage(9)",
		func() { predicates.ByStage[string](9, strong) })
}

// silent is an error that could demand something and does not.
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
		{demand(time.Minute), demand(predicates.Never), predicates.Never},
		{silent{}, demand(predicates.Never), predicates.Never},
		{silent{}, demand(0), 0},
		{silent{demand(time.Second)}, errOther, time.Second},
	} {
		for _, err := range bothOrders(tt.a, tt.b) {
			got, ok := predicates.PushbackOf(failedWith(err))
			assert.True(t, ok, "%v", err)
			assert.Equal(t, tt.want, got, "%v", err)
		}
	}
	_, ok := predicates.PushbackOf(failedWith(errors.Join(silent{}, silent{errOther})))
	assert.False(t, ok)
	got, _ := predicates.PushbackOf(failedWith(predicates.WithPushback(demand(time.Hour), time.Second)))
	assert.Equal(t, time.Second, got, "the outermost of a chain")
}
