package checkpointtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/testing/suite"
)

// Outlet is the target of an output.
type Outlet[T any] struct {
	// Open opens an output at the outlet, also after another was closed, or abandoned as
	// by a crash. At most one output is in use at a time.
	Open func() (checkpoint.Output[T], error)
	// Fail makes the n-th call fail that the output in use makes from now on to its disk
	// or server. n counts from 1; 0 ends the failures. If Fail is nil, Commit is repeated
	// only after success.
	Fail func(n int)
	// Visible returns the visible elements of the outlet, in order, even while an output
	// is in use.
	Visible func() ([]T, error)
}

// RunOutput checks outputs against the rules of [checkpoint.Output], in a subtest for
// each rule. newOutlet returns a new, empty outlet; element returns different elements
// for different numbers. equal compares two elements; nil means reflect.DeepEqual.
//
// The suite calls FreshStart of a [checkpoint.FreshStarter] with an empty outlet and with
// a filled outlet, which it must empty or refuse. Of other outputs it checks that
// uncommitted elements are never visible.
//
// Restore need not undo elements committed after its state.
func RunOutput[T any](
	t *testing.T, newOutlet func(t *testing.T) Outlet[T], element func(i int) T, equal func(a, b T) bool,
) {
	t.Helper()
	for _, r := range outputRules[T]() {
		t.Run(r.name, func(t *testing.T) {
			w := &writing[T]{outlet: newOutlet(t), element: element, equal: suite.EqualOr(equal)}
			if w.run(r); w.err != nil {
				t.Error(w.err)
			}
		})
	}
}

type outputRule[T any] struct {
	name  string
	check func(*writing[T])
}

func outputRules[T any]() []outputRule[T] {
	return []outputRule[T]{
		{"elements are visible after Commit, not before", visibleAfterCommit[T]},
		{"a state covers earlier states", coversEarlier[T]},
		{"Commit after Commit", commitsAgain[T]},
		{"Commit of the same state again", commitsSameAgain[T]},
		{"no elements to write", noElements[T]},
		{"Restore undoes elements that were not prepared", undoesWritten[T]},
		{"Restore undoes elements that were prepared later", undoesPrepared[T]},
		{"Restore commits its state", restoreCommits[T]},
		{"Restore again", restoresAgain[T]},
		{"FreshStart undoes all elements or refuses", freshStart[T]},
		{"a state belongs to the caller", stateBelongsToCaller[T]},
		{"random schedules", randomSchedules[T]},
	}
}

// writing drives an output, and computes the elements that must be visible. After the
// first error its steps are skipped.
type writing[T any] struct {
	outlet  Outlet[T]
	element func(i int) T
	equal   func(a, b T) bool

	out      checkpoint.Output[T] // the output in use, or nil
	next     int                  // number of the next element
	pending  []T                  // written and not committed
	prepared int                  // how many of pending are prepared
	visible  []T                  // must be visible
	err      error                // the first error
}

func (w *writing[T]) run(r outputRule[T]) {
	if err := suite.Quiet(func() error { r.check(w); return nil }); err != nil {
		w.err = errors.Join(w.err, err)
	}
	w.close()
}

func (w *writing[T]) do(step func() error) {
	if w.err == nil {
		w.err = step()
	}
}

// start opens an output and restores state, or starts afresh if state is nil.
func (w *writing[T]) start(state []byte) {
	w.do(func() error {
		if err := w.open(); err != nil {
			return err
		}
		fresh, ok := w.out.(checkpoint.FreshStarter)
		switch {
		case state != nil:
			if err := w.out.Restore(background, bytes.Clone(state)); err != nil {
				return fmt.Errorf("Restore(%x): %w", state, err)
			}
		case ok:
			if err := fresh.FreshStart(background); err != nil {
				return fmt.Errorf("FreshStart: %w", err)
			}
		}
		return nil
	})
}

func (w *writing[T]) open() (err error) {
	w.pending, w.prepared = nil, 0
	w.out, err = w.outlet.Open()
	if err != nil {
		return fmt.Errorf("Open: %w", err)
	}
	return nil
}

func (w *writing[T]) close() {
	if w.out == nil {
		return
	}
	if err := w.out.Close(); err != nil {
		w.err = errors.Join(w.err, fmt.Errorf("Close: %w", err))
	}
	w.out = nil
}

var endings = []string{"a crash", "Close"}

func (w *writing[T]) end(ending string) {
	if ending == "Close" {
		w.close()
	}
}

func (w *writing[T]) write(n int) {
	for range n {
		w.do(func() error {
			v := w.element(w.next)
			w.next++
			w.pending = append(w.pending, v)
			if err := w.out.Write(background, v); err != nil {
				return fmt.Errorf("Write(%+v): %w", v, err)
			}
			return nil
		})
	}
}

// prepare returns a state that is not nil, which would mean a fresh start.
func (w *writing[T]) prepare() (state []byte) {
	w.do(func() error {
		s, err := w.out.Prepare(background)
		if err != nil {
			return fmt.Errorf("Prepare: %w", err)
		}
		state = append([]byte{}, s...)
		w.prepared = len(w.pending)
		return nil
	})
	return state
}

func (w *writing[T]) commit(state []byte) {
	w.do(func() error {
		if err := w.out.Commit(background, bytes.Clone(state)); err != nil {
			return fmt.Errorf("Commit(%x): %w", state, err)
		}
		w.committed()
		return nil
	})
}

// committed records that the prepared elements must be visible.
func (w *writing[T]) committed() {
	w.visible = append(w.visible, w.pending[:w.prepared]...)
	w.pending, w.prepared = w.pending[w.prepared:], 0
}

func (w *writing[T]) checkpoint(n int) (state []byte) {
	w.write(n)
	state = w.prepare()
	w.commit(state)
	return state
}

func (w *writing[T]) look(when string) {
	w.do(func() error {
		got, err := w.outlet.Visible()
		if err != nil {
			return fmt.Errorf("%s: Visible: %w", when, err)
		}
		for i := range min(len(got), len(w.visible)) {
			if !w.equal(got[i], w.visible[i]) {
				return fmt.Errorf("%s: visible element %d is %+v, want %+v", when, i, got[i], w.visible[i])
			}
		}
		if len(got) != len(w.visible) {
			return fmt.Errorf("%s: %d elements are visible, want %d", when, len(got), len(w.visible))
		}
		return nil
	})
}

func visibleAfterCommit[T any](w *writing[T]) {
	w.start(nil)
	w.look("after a fresh start")
	w.write(3)
	w.look("after Write")
	state := w.prepare()
	w.look("after Prepare")
	w.write(2)
	w.commit(state)
	w.look("after Commit")
}

func coversEarlier[T any](w *writing[T]) {
	w.start(nil)
	w.write(2)
	_ = w.prepare() // of a checkpoint that is aborted
	w.write(3)
	w.commit(w.prepare())
	w.look("after Commit of the second of two states")
}

func commitsAgain[T any](w *writing[T]) {
	w.start(nil)
	for range 5 {
		w.checkpoint(2)
		w.look("after one Commit of several")
	}
}

// commitsSameAgain repeats Commit after a success, and after a failure of each call in
// it.
func commitsSameAgain[T any](w *writing[T]) {
	const failures = 40
	w.start(nil)
	for n := range failures {
		w.write(2)
		state := w.prepare()
		if w.outlet.Fail != nil {
			w.do(func() error {
				w.outlet.Fail(n + 1)
				defer w.outlet.Fail(0)
				_ = w.out.Commit(background, bytes.Clone(state))
				return nil
			})
		}
		w.commit(state)
		w.look("after Commit")
		w.do(func() error {
			if err := w.out.Commit(background, bytes.Clone(state)); err != nil {
				return fmt.Errorf("Commit(%x) of the same state again: %w", state, err)
			}
			return nil
		})
		w.look("after Commit of the same state again")
	}
	w.checkpoint(1)
	w.look("after the next Commit")
}

func noElements[T any](w *writing[T]) {
	w.start(nil)
	w.checkpoint(0)
	w.look("after a Commit of nothing")
	w.checkpoint(1)
	w.checkpoint(0)
	state := w.checkpoint(0)
	w.look("after another Commit of nothing")
	w.close()
	w.start(state)
	w.look("after Restore of it")
	w.checkpoint(2)
	w.look("after Restore and Commit")
}

func undoesWritten[T any](w *writing[T]) {
	w.start(nil)
	state := w.checkpoint(2)
	for _, ending := range endings {
		w.write(3)
		w.end(ending)
		w.look("after " + ending)
		w.start(state)
		w.look("after Restore, after " + ending)
	}
	w.checkpoint(2)
	w.look("after Restore and Commit")
}

func undoesPrepared[T any](w *writing[T]) {
	w.start(nil)
	state := w.checkpoint(2)
	w.write(3)
	_ = w.prepare() // of a checkpoint that was not completed
	w.write(1)
	w.close()
	w.start(state)
	w.look("after Restore")
	w.checkpoint(2)
	w.look("after Restore and Commit")
}

func restoreCommits[T any](w *writing[T]) {
	w.start(nil)
	w.checkpoint(1)
	for _, ending := range endings {
		w.write(2)
		state := w.prepare()
		w.write(2)
		w.committed() // the checkpoint is complete: only Commit is missing
		w.end(ending)
		w.start(state)
		w.look("after Restore of a state that was not committed, after " + ending)
		w.checkpoint(1)
		w.look("after Restore and Commit")
	}
}

func restoresAgain[T any](w *writing[T]) {
	w.start(nil)
	w.write(3)
	state := w.prepare()
	w.committed()
	for range 3 {
		w.start(state)
		w.look("after Restore of the same state as before")
		w.write(1)
	}
	w.commit(w.prepare())
	w.look("after Restore and Commit")
}

// freshStart starts without a state after a run without commits, then after a run with
// commits.
func freshStart[T any](w *writing[T]) {
	w.start(nil)
	for _, ending := range endings {
		w.write(2)
		_ = w.prepare() // of a checkpoint that was not completed
		w.write(1)
		w.end(ending)
		w.start(nil)
		w.look("after a fresh start, after " + ending + " before the first checkpoint")
	}
	w.checkpoint(2)
	w.look("after a fresh start and Commit")
	for _, ending := range endings {
		w.write(1)
		_ = w.prepare()
		w.write(1)
		w.end(ending)
		w.do(w.open)
		if w.err != nil {
			return
		}
		fresh, ok := w.out.(checkpoint.FreshStarter)
		switch {
		case !ok: // the output appends to the visible elements
		case fresh.FreshStart(background) != nil:
			w.look("after a FreshStart that refused")
			return
		default:
			w.visible = nil
			w.look("after a fresh start, after " + ending)
		}
		w.checkpoint(2)
		w.look("after another fresh start and Commit")
	}
}

func stateBelongsToCaller[T any](w *writing[T]) {
	w.start(nil)
	w.write(2)
	w.do(func() error {
		state, err := w.out.Prepare(background)
		suite.SpoilBytes(state)
		return err
	})
	state := w.prepare()
	given := bytes.Clone(state)
	w.do(func() error {
		err := w.out.Commit(background, given)
		suite.SpoilBytes(given)
		return err
	})
	w.committed()
	w.look("after Commit of a state that was changed afterwards")
	w.checkpoint(1)
	w.look("after the next Commit")
}

// randomSchedules takes random steps, with crashes in between.
func randomSchedules[T any](w *writing[T]) {
	random := rand.New(rand.NewPCG(3, 4))
	w.start(nil)
	state := w.prepare() // of the last complete checkpoint
	w.commit(state)
	for range 300 {
		switch random.IntN(6) {
		case 0, 1:
			w.write(random.IntN(4))
		case 2:
			_ = w.prepare()
		case 3:
			state = w.prepare()
			w.commit(state)
		case 4: // a crash before Commit
			state = w.prepare()
			w.committed()
			w.start(state)
		default:
			if random.IntN(2) == 0 {
				w.close()
			}
			w.start(state)
		}
		w.look("after a random step")
	}
}
