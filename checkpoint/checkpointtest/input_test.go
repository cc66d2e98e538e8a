package checkpointtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
)

var numbers = []int{3, 1, 4, 1, 5, 9, 2, 6}

func channelOf(values []int) checkpoint.Input[int] {
	c := make(chan int, len(values))
	for _, v := range values {
		c <- v
	}
	close(c)
	return NewChannelInput(c)
}

func TestRunInputAcceptsSoundInputs(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) checkpoint.Input[int]{
		"slice":   func(*testing.T) checkpoint.Input[int] { return NewSliceInput(numbers) },
		"channel": func(*testing.T) checkpoint.Input[int] { return channelOf(numbers) },
		"all":     func(*testing.T) checkpoint.Input[int] { return &wrongInput{sound: channelOf(numbers)} },
		"strict":  func(*testing.T) checkpoint.Input[int] { return &strictInput{Input: channelOf(numbers)} },
	} {
		t.Run(name, func(t *testing.T) { RunInput(t, open, nil) })
	}
}

// strictInput does no more than the rules require: each Next needs a Wait before, a Next
// after the end fails, Seek accepts any position, and the same position has different
// bytes each time.
type strictInput struct {
	checkpoint.Input[int]
	waited bool
	ended  bool
	asked  byte
}

func (in *strictInput) Wait(ctx context.Context) error {
	if in.waited || in.ended {
		panic("Wait although there is something, or nothing any more")
	}
	err := in.Input.(checkpoint.Waiter).Wait(ctx)
	in.waited = err == nil
	return err
}

func (in *strictInput) Next() (int, error) {
	if !in.waited {
		panic("Next without Wait")
	}
	in.waited = false
	v, err := in.Input.Next()
	in.ended = err != nil
	return v, err
}

func (in *strictInput) Position() []byte {
	in.asked++
	return append([]byte{in.asked}, in.Input.Position()...)
}

func (in *strictInput) Seek(position []byte) error {
	if len(position) > 0 {
		_ = in.Input.Seek(position[1:])
	}
	return nil
}

// wrongInput is a sound input, except that its functions replace methods.
type wrongInput struct {
	sound    checkpoint.Input[int]
	next     func(sound checkpoint.Input[int]) (int, error)
	position func(sound checkpoint.Input[int]) []byte
	seek     func(sound checkpoint.Input[int], position []byte) error
	wait     func(ctx context.Context, sound checkpoint.Input[int]) error
	commit   func(position []byte) error
	close    func() error
}

func (w *wrongInput) Next() (int, error) {
	if w.next != nil {
		return w.next(w.sound)
	}
	return w.sound.Next()
}

func (w *wrongInput) Position() []byte {
	if w.position != nil {
		return w.position(w.sound)
	}
	return w.sound.Position()
}

func (w *wrongInput) Seek(position []byte) error {
	if w.seek != nil {
		return w.seek(w.sound, position)
	}
	return w.sound.Seek(position)
}

func (w *wrongInput) Wait(ctx context.Context) error {
	if w.wait != nil {
		return w.wait(ctx, w.sound)
	}
	return w.sound.(checkpoint.Waiter).Wait(ctx)
}

func (w *wrongInput) Commit(_ context.Context, position []byte) error {
	if w.commit != nil {
		return w.commit(position)
	}
	return nil
}

func (w *wrongInput) Close() error {
	if w.close != nil {
		return w.close()
	}
	return w.sound.Close()
}

// For each rule there is an input that breaks it.
func TestRunInputFindsWrongInputs(t *testing.T) {
	type input = checkpoint.Input[int]
	opened := 0
	var at []byte
	wrong := map[string][]wrongInput{
		"the same elements each time": {
			{next: func(sound input) (int, error) {
				v, err := sound.Next()
				return v + opened, err
			}},
			{next: func(input) (int, error) { return 0, errors.New("no") }},
			{next: func(sound input) (int, error) { // like an io.Reader
				v, err := sound.Next()
				if err != nil {
					v = 1
				}
				return v, err
			}},
			{next: func(sound input) (int, error) {
				v, err := sound.Next()
				if err != nil {
					err = fmt.Errorf("no more: %w", err)
				}
				return v, err
			}},
			{close: func() error { return errors.New("no") }},
		},
		"resumes at every position": {
			{position: func(sound input) []byte {
				p := sound.Position()
				p[0] = max(p[0], 1) - 1
				return p
			}},
			{position: func(sound input) []byte { // loses its position at the end
				p := sound.Position()
				if _, err := sound.Next(); err == io.EOF {
					p[0] = 0
				}
				return p
			}},
			{seek: func(input, []byte) error { return nil }},
			{seek: func(input, []byte) error { return errors.New("no") }},
		},
		"Position does not move the input": {{position: func(sound input) []byte {
			p := sound.Position()
			_, _ = sound.Next()
			return p
		}}},
		"a position belongs to the caller": {
			{position: func(sound input) []byte { // reads the bytes that it has returned
				if at != nil {
					_ = sound.Seek(at)
				}
				at = sound.Position()
				return at
			}, next: func(sound input) (int, error) {
				if at != nil {
					if err := sound.Seek(at); err != nil {
						return 0, err
					}
				}
				at = nil
				return sound.Next()
			}},
			{seek: func(sound input, position []byte) error {
				at = position
				return sound.Seek(position)
			}, next: func(sound input) (int, error) {
				if at != nil {
					if err := sound.Seek(at); err != nil {
						return 0, err
					}
				}
				at = nil
				return sound.Next()
			}},
		},
		"damaged positions do not panic": {{seek: func(sound input, position []byte) error {
			_ = position[0]
			return sound.Seek(position)
		}}},
		"Wait does not move the input": {
			{wait: func(_ context.Context, sound input) error {
				_, _ = sound.Next()
				return nil
			}},
			{wait: func(context.Context, input) error { return errors.New("no") }},
		},
		"a cancelled Wait keeps all elements": {
			{wait: func(ctx context.Context, sound input) error {
				if ctx.Err() != nil {
					_, _ = sound.Next()
				}
				return ctx.Err()
			}},
			{wait: func(ctx context.Context, _ input) error {
				if ctx.Err() != nil {
					return errors.New("interrupted")
				}
				return nil
			}},
		},
		"Commit does not change the elements": {{commit: func([]byte) error { return errors.New("no") }}},
	}
	for _, rule := range inputRules[int]() {
		t.Run(rule.name, func(t *testing.T) {
			require.NotEmpty(t, wrong[rule.name])
			in := inputCheck[int]{equal: func(a, b int) bool { return a == b }}
			in.open = func() checkpoint.Input[int] { return &wrongInput{sound: channelOf(numbers)} }
			_, err := in.run(rule)
			assert.NoError(t, err, "a sound input")
			for i, w := range wrong[rule.name] {
				in.open = func() checkpoint.Input[int] {
					opened++
					w.sound = channelOf(numbers)
					return &w
				}
				_, err := in.run(rule)
				assert.Error(t, err, "wrong input %d", i)
			}
		})
	}
	t.Run("too few elements", func(t *testing.T) {
		in := inputCheck[int]{
			equal: func(a, b int) bool { return a == b },
			open:  func() checkpoint.Input[int] { return channelOf(numbers[:2]) },
		}
		_, err := in.run(inputRules[int]()[0])
		assert.ErrorContains(t, err, "2 elements")
	})
}
