package checkpointtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/testing/suite"
)

// RunInput checks inputs against the rules of [checkpoint.Input], and of
// [checkpoint.Waiter] and [checkpoint.Committer] if they implement these, in a subtest
// for each rule. open returns a new input of the same elements: three or more, but few
// enough to read them a hundred times. The suite closes it. equal compares two elements;
// nil means reflect.DeepEqual. The suite cannot make an input idle, so test yourself that
// an interrupted Wait does not lose elements.
func RunInput[T any](t *testing.T, open func(t *testing.T) checkpoint.Input[T], equal func(a, b T) bool) {
	t.Helper()
	for _, r := range inputRules[T]() {
		t.Run(r.name, func(t *testing.T) {
			p := inputCheck[T]{open: func() checkpoint.Input[T] { return open(t) }, equal: suite.EqualOr(equal)}
			skip, err := p.run(r)
			if skip != "" {
				t.Skip(skip)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

type inputCheck[T any] struct {
	open  func() checkpoint.Input[T]
	equal func(a, b T) bool
}

type inputRule[T any] struct {
	name      string
	check     func(p inputCheck[T], all []T) error
	waits     bool // the rule applies to a Waiter
	committed bool // the rule applies to a Committer
}

func inputRules[T any]() []inputRule[T] {
	return []inputRule[T]{
		{name: "the same elements each time", check: inputCheck[T].sameEachTime},
		{name: "resumes at every position", check: inputCheck[T].resumes},
		{name: "Position does not move the input", check: inputCheck[T].positionDoesNotMove},
		{name: "a position belongs to the caller", check: inputCheck[T].positionBelongsToCaller},
		{name: "damaged positions do not panic", check: inputCheck[T].toleratesDamage},
		{name: "Wait does not move the input", check: inputCheck[T].waitDoesNotMove, waits: true},
		{name: "a cancelled Wait keeps all elements", check: inputCheck[T].cancelledWaitKeepsElements, waits: true},
		{name: "Commit does not change the elements", check: inputCheck[T].commitsKeepElements, committed: true},
	}
}

// positionsChecked bounds the positions that a rule seeks to.
const positionsChecked = 100

func (p inputCheck[T]) run(r inputRule[T]) (skip string, err error) {
	var all []T
	err = p.with(func(in checkpoint.Input[T]) (err error) {
		_, waits := in.(checkpoint.Waiter)
		_, commits := in.(checkpoint.Committer)
		switch {
		case r.waits && !waits:
			skip = "the input is not a Waiter"
		case r.committed && !commits:
			skip = "the input is not a Committer"
		}
		all, err = p.rest(in)
		return err
	})
	switch {
	case err != nil || skip != "":
		return skip, err
	case len(all) < 3:
		return "", fmt.Errorf("the input has %d elements, the suite needs three", len(all))
	}
	return "", r.check(p, all)
}

func (p inputCheck[T]) with(f func(in checkpoint.Input[T]) error) error {
	in := p.open()
	err := suite.Quiet(func() error { return f(in) })
	if closeErr := in.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("Close: %w", closeErr))
	}
	return err
}

// next reads an element as a source does.
func (p inputCheck[T]) next(in checkpoint.Input[T]) (v T, err error) {
	if w, ok := in.(checkpoint.Waiter); ok {
		if err := w.Wait(background); err != nil {
			return v, fmt.Errorf("Wait: %w", err)
		}
	}
	v, err = in.Next()
	var zero T
	switch { // to a source, a wrapped io.EOF is a failure
	case err == io.EOF && !p.equal(v, zero):
		return v, fmt.Errorf("Next returned %+v with io.EOF: the source ignores it", v)
	case err != nil && err != io.EOF:
		return v, fmt.Errorf("Next: %w, which is not io.EOF itself", err)
	}
	return v, err
}

func (p inputCheck[T]) skip(in checkpoint.Input[T], n int) error {
	for i := range n {
		if _, err := p.next(in); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	return nil
}

func (p inputCheck[T]) rest(in checkpoint.Input[T]) (all []T, err error) {
	for {
		v, err := p.next(in)
		switch {
		case err == io.EOF:
			return all, nil
		case err != nil:
			return all, fmt.Errorf("element %d: %w", len(all), err)
		}
		all = append(all, v)
	}
}

func (p inputCheck[T]) leaves(in checkpoint.Input[T], want []T) error {
	got, err := p.rest(in)
	if err != nil {
		return err
	}
	for i := range min(len(got), len(want)) {
		if !p.equal(got[i], want[i]) {
			return fmt.Errorf("got element %+v, want %+v", got[i], want[i])
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d more elements, want %d", len(got), len(want))
	}
	return nil
}

func (p inputCheck[T]) sameEachTime(all []T) error {
	return p.with(func(in checkpoint.Input[T]) error { return p.leaves(in, all) })
}

// stops returns up to about positionsChecked numbers of elements after which to stop.
func stops(n int) (at []int) {
	for i := 0; i < n; i += max(1, n/positionsChecked) {
		at = append(at, i)
	}
	return append(at, n)
}

func (p inputCheck[T]) resumes(all []T) error {
	for _, n := range stops(len(all)) {
		var position []byte
		err := p.with(func(in checkpoint.Input[T]) error {
			err := p.skip(in, n)
			position = bytes.Clone(in.Position())
			return err
		})
		if err == nil {
			err = p.leads(position, n, all)
		}
		if err != nil {
			return err
		}
	}
	var position []byte // after io.EOF, as in the final checkpoint
	err := p.with(func(in checkpoint.Input[T]) error {
		_, err := p.rest(in)
		position = bytes.Clone(in.Position())
		return err
	})
	if err == nil {
		err = p.leads(position, len(all), all)
	}
	if err != nil {
		return fmt.Errorf("after io.EOF: %w", err)
	}
	return nil
}

// leads checks that Seek to a position, and to the position right after Seek, resumes
// after n elements.
func (p inputCheck[T]) leads(position []byte, n int, all []T) error {
	for _, of := range []string{"a checkpoint", "a checkpoint right after a restart"} {
		err := p.with(func(in checkpoint.Input[T]) error {
			if err := in.Seek(bytes.Clone(position)); err != nil {
				return fmt.Errorf("Seek: %w", err)
			}
			position = bytes.Clone(in.Position())
			return p.leaves(in, all[n:])
		})
		if err != nil {
			return fmt.Errorf("from the position of %s after %d of %d elements: %w", of, n, len(all), err)
		}
	}
	return nil
}

func (p inputCheck[T]) positionDoesNotMove(all []T) error {
	return p.with(func(in checkpoint.Input[T]) error {
		for i, want := range all {
			_, _ = in.Position(), in.Position()
			if v, err := p.next(in); err != nil || !p.equal(v, want) {
				return fmt.Errorf("after Position, Next returned %+v, error %v, for element %d: %+v", v, err, i, want)
			}
		}
		return nil
	})
}

func (p inputCheck[T]) positionBelongsToCaller(all []T) error {
	half := len(all) / 2
	var position []byte
	err := p.with(func(in checkpoint.Input[T]) error {
		if err := p.skip(in, half); err != nil {
			return err
		}
		position = in.Position()
		kept := bytes.Clone(position)
		suite.SpoilBytes(position)
		if err := p.leaves(in, all[half:]); err != nil {
			return fmt.Errorf("after a change of the position that Position has returned: %w", err)
		}
		position = kept
		return nil
	})
	if err != nil {
		return err
	}
	return p.with(func(in checkpoint.Input[T]) error {
		if err := in.Seek(position); err != nil {
			return fmt.Errorf("Seek: %w", err)
		}
		suite.SpoilBytes(position)
		if err := p.leaves(in, all[half:]); err != nil {
			return fmt.Errorf("after a change of the position that was passed to Seek: %w", err)
		}
		return nil
	})
}

func (p inputCheck[T]) toleratesDamage(all []T) error {
	var position []byte
	err := p.with(func(in checkpoint.Input[T]) error {
		err := p.skip(in, len(all)/2)
		position = bytes.Clone(in.Position())
		return err
	})
	if err != nil {
		return err
	}
	for _, bad := range suite.Spoiled(position) {
		in := p.open()
		err := suite.Quiet(func() error {
			if in.Seek(bytes.Clone(bad)) != nil {
				return nil
			}
			if w, ok := in.(checkpoint.Waiter); ok { // it may never get another element
				ctx, cancel := context.WithTimeout(background, time.Millisecond)
				defer cancel()
				if w.Wait(ctx) != nil {
					return nil
				}
			}
			_, _ = in.Next()
			return nil
		})
		_ = in.Close()
		if err != nil {
			return fmt.Errorf("Seek to %x: %w", bad, err)
		}
	}
	return nil
}

func (p inputCheck[T]) waitDoesNotMove(all []T) error {
	positions := make([][]byte, len(all)+1)
	err := p.with(func(in checkpoint.Input[T]) error {
		for i := range positions {
			if err := in.(checkpoint.Waiter).Wait(background); err != nil {
				return fmt.Errorf("Wait after %d elements: %w", i, err)
			}
			positions[i] = bytes.Clone(in.Position())
			v, err := in.Next()
			if i == len(all) && err == io.EOF {
				break
			}
			if err != nil || i == len(all) || !p.equal(v, all[i]) {
				return fmt.Errorf("after Wait, Next returned %+v, error %v, for element %d of %d", v, err, i, len(all))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, n := range stops(len(all)) {
		if err := p.leads(positions[n], n, all); err != nil {
			return fmt.Errorf("after Wait: %w", err)
		}
	}
	return nil
}

func (p inputCheck[T]) cancelledWaitKeepsElements(all []T) error {
	return p.with(func(in checkpoint.Input[T]) error {
		for i, want := range all {
			err := errors.New("not asked yet")
			for n := 0; err != nil; n++ { // the context ends later each time, and finally never
				ctx, cancel := background, context.CancelFunc(func() {})
				if n < 5 {
					ctx, cancel = context.WithTimeout(background, time.Duration(n*n)*10*time.Microsecond)
				}
				err = in.(checkpoint.Waiter).Wait(ctx)
				cancel()
				if err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
					return fmt.Errorf("Wait under a context that ends: error %w, want nil or the error of the context", err)
				}
			}
			if v, err := in.Next(); err != nil || !p.equal(v, want) {
				return fmt.Errorf("after a cancelled Wait, Next returned %+v, error %v, for element %d: %+v", v, err, i, want)
			}
		}
		return nil
	})
}

func (p inputCheck[T]) commitsKeepElements(all []T) error {
	return p.with(func(in checkpoint.Input[T]) error {
		positions := make(chan []byte, len(all))
		var committing sync.WaitGroup
		var failed error
		committing.Go(func() { // concurrently with Next, as the coordinator does
			for position := range positions {
				if err := in.(checkpoint.Committer).Commit(background, position); err != nil && failed == nil {
					failed = fmt.Errorf("Commit of %x: %w", position, err)
				}
			}
		})
		err := func() error {
			defer committing.Wait()
			defer close(positions)
			for i, want := range all {
				if v, err := p.next(in); err != nil || !p.equal(v, want) {
					return fmt.Errorf("Next returned %+v, error %v, for element %d: %+v", v, err, i, want)
				}
				positions <- bytes.Clone(in.Position())
			}
			return nil
		}()
		return errors.Join(err, failed)
	})
}
