package optest

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
)

// Tally checks law O1: its methods are not called concurrently, each attempt ends before
// its element, and each element ends once.
type Tally struct {
	t        *testing.T
	busy     atomic.Bool
	Begun    int
	Restored int
	Attempts int
	open     map[string]int // running attempts by element
	Doubt    bool           // a discarded element may have taken effect
	Over     map[observe.EndKind]int
	log      []string
	Endings  map[string]observe.Ending
}

type TallyKey struct{}

func NewTally(t *testing.T) *Tally {
	return &Tally{t: t, open: map[string]int{}, Over: map[observe.EndKind]int{}, Endings: map[string]observe.Ending{}}
}

func (o *Tally) enter() func() {
	assert.False(o.t, o.busy.Swap(true), "two calls at once")
	return func() { o.busy.Store(false) }
}

func (o *Tally) Accepted(ctx context.Context, element any, restored bool) context.Context {
	defer o.enter()()
	o.Begun++
	if restored {
		o.Restored++
	}
	o.log = append(o.log, fmt.Sprint("+", element))
	return context.WithValue(ctx, TallyKey{}, element)
}

func (o *Tally) AttemptStarted(ctx context.Context, _ int) context.Context {
	defer o.enter()()
	o.Attempts++
	o.open[fmt.Sprint(ctx.Value(TallyKey{}))]++
	return ctx
}

func (o *Tally) AttemptEnded(ctx context.Context, _ observe.Outcome) {
	defer o.enter()()
	o.open[fmt.Sprint(ctx.Value(TallyKey{}))]--
}

func (o *Tally) Ended(ctx context.Context, e observe.Ending) {
	defer o.enter()()
	name := fmt.Sprint(ctx.Value(TallyKey{}))
	assert.Zero(o.t, o.open[name], "an attempt of %s goes on", name)
	o.Over[e.How]++
	o.Doubt = o.Doubt || e.How == observe.Discarded && e.InDoubt
	o.log = append(o.log, fmt.Sprintf("-%s %v", name, e.How))
	o.Endings[name] = e
}

func (o *Tally) Sum() (n int) {
	for m := range maps.Values(o.Over) {
		n += m
	}
	return n
}

func UpTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func Double(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
	result.Complete(2 * in)
	return nil
}

// Inlet is a sink that the test reads.
type Inlet struct{ Input chan any }

func (s *Inlet) In() chan<- any   { return s.Input }
func (s *Inlet) AwaitCompletion() {}

type Door struct {
	Tally
	Open   atomic.Bool
	Bell   func()
	Breaks bool
}

func (d *Door) TryAdmit() bool {
	if d.Breaks {
		panic("the door is stuck")
	}
	return d.Open.Load()
}
func (d *Door) Notify(f func()) { d.Bell = f }

type Mute struct{}

func (Mute) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }
func (Mute) AttemptStarted(ctx context.Context, _ int) context.Context   { return ctx }
func (Mute) AttemptEnded(context.Context, observe.Outcome)               {}
func (Mute) Ended(context.Context, observe.Ending)                       {}
