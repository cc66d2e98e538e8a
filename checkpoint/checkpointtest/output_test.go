package checkpointtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
)

// wrongOutput is a sound output in memory, except that its functions replace methods.
type wrongOutput struct {
	storage   *wrongStorage
	written   []int  // and not committed
	committed []byte // the last state
}

type wrongStorage struct {
	visible []int
	kept    []int // for outputs that wrongly keep elements
	state   []byte

	restore func(o *wrongOutput, state []byte) error
	write   func(o *wrongOutput, v int) error
	prepare func(o *wrongOutput) ([]byte, error)
	commit  func(o *wrongOutput, state []byte) error
	close   func(o *wrongOutput) error
}

// outputState makes Values visible, after the first Before values, when it is committed.
type outputState struct {
	Before int
	Values []int
}

func (o *wrongOutput) publish(state []byte) (published int, err error) {
	var s outputState
	if len(state) > 0 {
		if err := json.Unmarshal(state, &s); err != nil {
			return 0, err
		}
	}
	o.storage.visible = append(o.storage.visible[:s.Before:s.Before], s.Values...)
	return len(s.Values), nil
}

func (o *wrongOutput) FreshStart(context.Context) error {
	return o.Restore(context.Background(), nil)
}

func (o *wrongOutput) Restore(_ context.Context, state []byte) error {
	if o.storage.restore != nil {
		return o.storage.restore(o, state)
	}
	_, err := o.publish(state)
	return err
}

func (o *wrongOutput) Write(_ context.Context, v int) error {
	if o.storage.write != nil {
		return o.storage.write(o, v)
	}
	o.written = append(o.written, v)
	return nil
}

func (o *wrongOutput) Prepare(context.Context) ([]byte, error) {
	if o.storage.prepare != nil {
		return o.storage.prepare(o)
	}
	return json.Marshal(outputState{len(o.storage.visible), o.written})
}

func (o *wrongOutput) Commit(_ context.Context, state []byte) error {
	if o.storage.commit != nil {
		return o.storage.commit(o, state)
	}
	if bytes.Equal(state, o.committed) {
		return nil
	}
	n, err := o.publish(state)
	o.written, o.committed = o.written[n:], bytes.Clone(state)
	return err
}

func (o *wrongOutput) Close() error {
	if o.storage.close != nil {
		return o.storage.close(o)
	}
	return nil
}

func outlet(p *wrongStorage) Outlet[int] {
	return Outlet[int]{
		Open:    func() (checkpoint.Output[int], error) { return &wrongOutput{storage: p}, nil },
		Visible: func() ([]int, error) { return slices.Clone(p.visible), nil },
	}
}

func number(i int) int { return i }

func TestRunOutputAcceptsSoundOutputs(t *testing.T) {
	RunOutput(t, func(*testing.T) Outlet[int] { return outlet(&wrongStorage{}) }, number, nil)
	t.Run("that cannot undo what it has published", func(t *testing.T) {
		RunOutput(t, func(*testing.T) Outlet[int] {
			o := outlet(&wrongStorage{})
			open := o.Open
			o.Open = func() (checkpoint.Output[int], error) {
				out, err := open()
				return struct{ checkpoint.Output[int] }{out}, err
			}
			return o
		}, number, nil)
	})
}

// For each rule there is an output that breaks it.
func TestRunOutputFindsWrongOutputs(t *testing.T) {
	no := errors.New("no")
	wrong := map[string][]wrongStorage{
		"elements are visible after Commit, not before": {
			{write: func(o *wrongOutput, v int) error {
				o.storage.visible = append(o.storage.visible, v)
				return nil
			}},
			{prepare: func(o *wrongOutput) ([]byte, error) {
				state, err := json.Marshal(outputState{len(o.storage.visible), o.written})
				o.storage.visible = append(o.storage.visible, o.written...)
				return state, err
			}},
			{commit: func(*wrongOutput, []byte) error { return nil }},
			{commit: func(o *wrongOutput, _ []byte) error { // also commits elements written after Prepare
				o.storage.visible = append(o.storage.visible, o.written...)
				return nil
			}},
			{write: func(*wrongOutput, int) error { return no }},
			{prepare: func(*wrongOutput) ([]byte, error) { return nil, no }},
			{commit: func(*wrongOutput, []byte) error { return no }},
			{restore: func(*wrongOutput, []byte) error { return no }},
			{close: func(*wrongOutput) error { return no }},
		},
		"a state covers earlier states": {{prepare: func(o *wrongOutput) ([]byte, error) {
			state, err := json.Marshal(outputState{len(o.storage.visible), o.written})
			o.written = nil
			return state, err
		}, commit: func(o *wrongOutput, state []byte) error {
			_, err := o.publish(state)
			return err
		}}},
		"Commit after Commit": {{commit: func(o *wrongOutput, state []byte) error {
			_, err := o.publish(state)
			return err
		}}},
		"Commit of the same state again": {{commit: func(o *wrongOutput, state []byte) error {
			var s outputState
			if err := json.Unmarshal(state, &s); err != nil {
				return err
			}
			o.storage.visible, o.written = append(o.storage.visible, s.Values...), nil
			return nil
		}}},
		"no elements to write": {{prepare: func(o *wrongOutput) ([]byte, error) {
			if len(o.written) == 0 {
				return nil, no
			}
			return json.Marshal(outputState{len(o.storage.visible), o.written})
		}}},
		"Restore undoes elements that were not prepared": {{write: func(o *wrongOutput, v int) error {
			o.storage.kept = append(o.storage.kept, v)
			o.written = o.storage.kept
			return nil
		}, commit: func(o *wrongOutput, state []byte) error {
			_, err := o.publish(state)
			o.storage.kept, o.written = nil, nil
			return err
		}}},
		"Restore undoes elements that were prepared later": {{prepare: func(o *wrongOutput) ([]byte, error) {
			o.storage.kept = append(o.storage.kept, o.written...)
			o.written = nil
			return json.Marshal(outputState{len(o.storage.visible), o.storage.kept})
		}, commit: func(o *wrongOutput, state []byte) error {
			_, err := o.publish(state)
			o.storage.kept = nil
			return err
		}}},
		"Restore commits its state": {
			{restore: func(o *wrongOutput, state []byte) error {
				if state == nil {
					o.storage.visible = nil
				}
				return nil
			}},
			{close: func(o *wrongOutput) error { // discards prepared elements
				o.storage.state = []byte("closed")
				return nil
			}, restore: func(o *wrongOutput, state []byte) error {
				if o.storage.state != nil {
					return nil
				}
				_, err := o.publish(state)
				return err
			}},
		},
		"Restore again": {{restore: func(o *wrongOutput, state []byte) error {
			var s outputState
			if state == nil {
				return nil
			}
			err := json.Unmarshal(state, &s)
			o.storage.visible = append(o.storage.visible, s.Values...)
			return err
		}}},
		"FreshStart undoes all elements or refuses": {
			{restore: func(o *wrongOutput, state []byte) error {
				if state == nil {
					return nil
				}
				_, err := o.publish(state)
				return err
			}},
			{prepare: func(o *wrongOutput) ([]byte, error) {
				o.storage.kept = o.written
				return json.Marshal(outputState{len(o.storage.visible), o.written})
			}, close: func(o *wrongOutput) error {
				o.storage.kept = nil
				return nil
			}, restore: func(o *wrongOutput, state []byte) error { // continues with the elements that a crash has left
				o.written, o.storage.kept = o.storage.kept, nil
				_, err := o.publish(state)
				return err
			}},
		},
		"a state belongs to the caller": {
			{prepare: func(o *wrongOutput) ([]byte, error) {
				if o.storage.state == nil {
					o.storage.state, _ = json.Marshal(outputState{len(o.storage.visible), o.written})
				}
				return o.storage.state, nil
			}},
			{commit: func(o *wrongOutput, state []byte) error {
				if o.storage.state != nil && !json.Valid(o.storage.state) {
					return no
				}
				o.storage.state = state
				n, err := o.publish(state)
				o.written = o.written[n:]
				return err
			}},
		},
		"random schedules": {{commit: func(o *wrongOutput, state []byte) error {
			n, err := o.publish(state)
			o.written = o.written[n:]
			if len(o.storage.visible) > 40 {
				o.storage.visible = o.storage.visible[:40]
			}
			return err
		}}},
	}
	for _, rule := range outputRules[int]() {
		t.Run(rule.name, func(t *testing.T) {
			require.NotEmpty(t, wrong[rule.name])
			run := func(p *wrongStorage) error {
				w := &writing[int]{outlet: outlet(p), element: number, equal: func(a, b int) bool { return a == b }}
				w.run(rule)
				return w.err
			}
			assert.NoError(t, run(&wrongStorage{}), "a sound output")
			for i := range wrong[rule.name] {
				assert.Error(t, run(&wrong[rule.name][i]), "wrong output %d", i)
			}
		})
	}
}
