package checkpoints_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	weirflow "github.com/weirflow/weir/flow"
)

// ---- Law C2: streams that branch and join

// published is an output that records the committed values.
type published struct {
	written, prepared, all []int
}

func (*published) Restore(context.Context, []byte) error { return nil }
func (o *published) Write(_ context.Context, v int) error {
	o.written = append(o.written, v)
	return nil
}

func (o *published) Commit(context.Context, []byte) error {
	o.all = slices.Clone(o.prepared)
	return nil
}
func (*published) Close() error { return nil }
func (o *published) Prepare(context.Context) ([]byte, error) {
	o.prepared = slices.Clone(o.written)
	return []byte{}, nil
}

// own is a user's flow, which passes each value on after a delay.
type own struct{ in, out chan any }

func newOwn(slow func() time.Duration) *own {
	f := &own{make(chan any, 8), make(chan any, 8)}
	go func() {
		defer close(f.out)
		for v := range f.in {
			if !participant.IsControl(v) {
				time.Sleep(slow())
			}
			f.out <- v
		}
	}()
	return f
}

func (f *own) In() chan<- any                     { return f.in }
func (f *own) Out() <-chan any                    { return f.out }
func (f *own) Via(next streams.Flow) streams.Flow { flow.DoStream(f, next); return next }
func (f *own) To(sink streams.Sink)               { flow.DoStream(f, toSink{sink}); sink.AwaitCompletion() }

// toSink lets a sink end a flow.DoStream.
type toSink struct{ streams.Inlet }

func (toSink) AwaitCompletion() {}

func (toSink) Out() <-chan any               { return nil }
func (toSink) Via(streams.Flow) streams.Flow { return nil }
func (toSink) To(streams.Sink)               {}

// plumbing has the parts from which a topology is built.
type plumbing struct {
	*checkpoint.Coordinator
	mode    optest.Mode
	store   *checkpointtest.MemoryStore
	source  *checkpoint.Source[int]
	outputs []*published
	slow    func() time.Duration // delay in one branch
	running sync.WaitGroup
}

const topologyElements = 100

func newPlumbing(t *testing.T, m optest.Mode, interval time.Duration, slow func() time.Duration) *plumbing {
	t.Helper()
	p := &plumbing{mode: m, store: checkpointtest.NewMemoryStore(), slow: slow}
	var err error
	p.Coordinator, err = checkpoint.NewCoordinator(p.store, checkpoint.WithInterval(interval), checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	p.source = p.newSource("source")
	return p
}

func (p *plumbing) newSource(name string) *checkpoint.Source[int] {
	values := make([]int, topologyElements)
	for i := range values {
		values[i] = i
	}
	return checkpoint.NewSource(p.Coordinator, name, checkpointtest.NewSliceInput(values))
}

// end sends a stream to a new sink.
func (p *plumbing) end(f streams.Flow) {
	out := &published{}
	sink := checkpoint.NewSink(p.Coordinator, "sink "+strconv.Itoa(len(p.outputs)), out)
	p.outputs = append(p.outputs, out)
	p.running.Go(func() { f.To(sink) })
}

func (p *plumbing) op(name string) streams.Flow {
	return optest.Construct[int, int](p.mode, optest.Slowly(0), time.Minute, nil,
		asyncop.WithName(name), asyncop.WithCheckpoints(p.Coordinator), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
}

func (p *plumbing) same() streams.Flow { return weirflow.NewMap(func(v int) int { return v }) }
func (p *plumbing) slowMap() streams.Flow {
	return weirflow.NewMap(func(v int) int { time.Sleep(p.slow()); return v })
}
func (p *plumbing) slowOwn() streams.Flow  { return newOwn(p.slow) }
func (p *plumbing) quickOwn() streams.Flow { return newOwn(func() time.Duration { return 0 }) }

// run starts the topology and returns its error.
func (p *plumbing) run() error {
	err := p.Start()
	if err == nil {
		err = p.Wait()
	}
	p.running.Wait()
	time.Sleep(24 * time.Hour) // values that are still in a branch reach its end
	return errors.Join(err, p.Close())
}

// kinds returns the kinds of the stored checkpoints.
func (p *plumbing) kinds(t *testing.T) (kinds []checkpoint.Kind) {
	t.Helper()
	store := p.store.Reopen()
	entries, err := store.List(t.Context())
	require.NoError(t, err)
	for _, e := range entries {
		s, err := store.Load(t.Context(), e.ID)
		require.NoError(t, err)
		kinds = append(kinds, s.Kind)
	}
	return kinds
}

// Branches that join lost elements silently: a barrier of one branch overtakes elements
// of another.
var refusedTopologies = []struct {
	name  string
	build func(p *plumbing)
	text  string
	early bool // no checkpoint is taken
}{
	{"fan-out, flows, merge", func(p *plumbing) {
		b := flow.FanOut(p.source, 2)
		p.end(flow.Merge(b[0].Via(p.same()), b[1].Via(p.slowMap())))
	}, "flow.Merge reads its output", true},
	{"round robin, flows, merge", func(p *plumbing) {
		b := flow.RoundRobin(p.source, 2)
		p.end(flow.Merge(b[0].Via(p.same()), b[1].Via(p.slowMap())))
	}, "flow.RoundRobin reads its output", true},
	{"round robin, sinks", func(p *plumbing) {
		b := flow.RoundRobin(p.source, 2)
		p.end(b[0])
		p.end(b[1])
	}, "flow.RoundRobin reads its output", true},
	{"round robin behind a flow", func(p *plumbing) {
		b := flow.RoundRobin(p.source.Via(p.same()), 2)
		p.end(flow.Merge(b[0].Via(p.quickOwn()), b[1].Via(p.slowOwn())))
	}, "flow.RoundRobin reads its output", true},
	{"fan-out, operators, merge", func(p *plumbing) {
		b := flow.FanOut(p.source, 2)
		p.end(flow.Merge(b[0].Via(p.op("one")), b[1].Via(p.op("two"))))
	}, "flow.Merge reads its output", true},
	{"split", func(p *plumbing) {
		b := flow.Split(p.source.Via(p.same()), func(v any) bool { return v != 5 })
		p.end(b[0])
		p.end(b[1])
	}, "flow.Split reads its output", true},
	{"zip", func(p *plumbing) {
		b := flow.FanOut(p.source, 2)
		p.end(flow.ZipWith(func(v []any) any { return v[0] }, streams.Outlet(b[0].Via(p.same())), streams.Outlet(b[1].Via(p.slowMap()))))
	}, "flow.ZipWith reads its output", true},
	{"two sources", func(p *plumbing) {
		p.end(flow.Merge(p.source.Via(p.same()), p.newSource("other").Via(p.slowMap())))
	}, `a pipeline has one source, and there are "source" and "other"`, true},
	{"fan-out, merge", func(p *plumbing) {
		p.end(flow.Merge(flow.FanOut(p.source, 2)...))
	}, "branches of a stream with checkpoints must not meet again", false},
	{"fan-out, flows of one's own, merge", func(p *plumbing) {
		b := flow.FanOut(p.source, 2)
		p.end(flow.Merge(b[0].Via(p.quickOwn()), b[1].Via(p.slowOwn())))
	}, "branches of a stream with checkpoints must not meet again", false},
	{"fan-out, flows of one's own, merge, operator", func(p *plumbing) {
		b := flow.FanOut(p.source, 2)
		p.end(flow.Merge(b[0].Via(p.quickOwn()), b[1].Via(p.slowOwn())).Via(p.op("op")))
	}, "branches of a stream with checkpoints must not meet again", false},
	{"fan-out, flows of one's own, merge, flow", func(p *plumbing) {
		b := flow.FanOut(p.source, 2)
		p.end(flow.Merge(b[0].Via(p.quickOwn()), b[1].Via(p.slowOwn())).Via(p.same()))
	}, "branches of a stream with checkpoints must not meet again", false},
}

func TestRefusedTopologies(t *testing.T) {
	for _, c := range refusedTopologies {
		for _, interval := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s/%v", c.name, interval), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPlumbing(t, optest.Mode{Ordered: true, Capacity: 4}, interval, func() time.Duration { return 3 * time.Millisecond })
					c.build(p)
					err := p.run()
					require.ErrorContains(t, err, c.text)
					require.NotContains(t, p.kinds(t), checkpoint.Drain)
					if c.early {
						require.Empty(t, p.kinds(t))
					}
				})
			})
		}
	}
}

// If no barrier arrives twice, an element that the final barrier has overtaken fails the
// run before the final checkpoint is stored, both at a sink and at an operator before a
// sink.
func TestElementAfterTheFinalBarrier(t *testing.T) {
	for name, end := range map[string]func(p *plumbing, f streams.Flow){
		"sink":           func(p *plumbing, f streams.Flow) { p.end(f) },
		"operator":       func(p *plumbing, f streams.Flow) { p.end(f.Via(p.op("op"))) },
		"flow, operator": func(p *plumbing, f streams.Flow) { p.end(f.Via(p.same()).Via(p.op("op")).Via(p.same())) },
	} {
		for _, kind := range []checkpoint.Kind{checkpoint.Drain, checkpoint.Suspend} {
			t.Run(name+"/"+kind.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPlumbing(t, optest.Mode{Ordered: true, Capacity: 4}, 0, func() time.Duration { return time.Minute })
					// Like a round robin behind a user's own flow, which weir cannot see:
					// one element takes the other branch.
					first, other, joined := newOwn(func() time.Duration { return 0 }), p.slowOwn(), newOwn(func() time.Duration { return 0 })
					p.source.Via(first)
					var both sync.WaitGroup
					both.Go(func() {
						for v := range first.out {
							if v == 50 {
								other.In() <- v
							} else {
								joined.in <- v
							}
							if v == 99 && kind == checkpoint.Suspend {
								p.Host().RequestFinal(participant.Kind(kind))
							}
						}
						close(other.In())
					})
					both.Go(func() {
						for v := range other.Out() {
							joined.in <- v
						}
					})
					p.running.Go(func() { both.Wait(); close(joined.in) })
					end(p, joined)
					require.ErrorContains(t, p.run(), "an element came after the final barrier")
					require.Empty(t, p.kinds(t))
				})
			})
		}
	}
}

// Lines and trees keep working at random speeds and intervals.
func TestSupportedTopologies(t *testing.T) {
	all := make([]int, topologyElements)
	for i := range all {
		all[i] = i
	}
	for name, build := range map[string]func(p *plumbing){
		"line": func(p *plumbing) { p.end(p.source.Via(p.same()).Via(p.op("one")).Via(p.slowMap()).Via(p.op("two"))) },
		"pass-through": func(p *plumbing) {
			p.end(p.source.Via(flow.NewPassThrough()).Via(p.op("one")).Via(flow.NewPassThrough()).Via(p.slowOwn()))
		},
		"fan-out": func(p *plumbing) {
			b := flow.FanOut(p.source, 2)
			p.end(b[0])
			p.end(b[1].Via(p.slowMap()))
		},
		"fan-outs in a tree": func(p *plumbing) {
			b := flow.FanOut(p.source.Via(p.op("one")), 2)
			p.end(b[0].Via(p.slowOwn()))
			c := flow.FanOut(b[1].Via(p.op("two")), 3)
			p.end(c[0].Via(p.op("three")))
			p.end(c[1].Via(p.slowMap()))
			p.end(c[2])
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				random := rand.New(rand.NewPCG(seed, 11))
				m := optest.Mode{Ordered: seed%2 == 0, Capacity: 1 + random.IntN(10)}
				most := 1 + random.IntN(5000)
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					p := newPlumbing(t, m, time.Duration(1+random.IntN(20))*time.Millisecond, func() time.Duration {
						mu.Lock()
						defer mu.Unlock()
						return time.Duration(random.IntN(most)) * time.Microsecond
					})
					build(p)
					require.NoError(t, p.run())
					for _, o := range p.outputs {
						slices.Sort(o.all)
						require.Equal(t, all, o.all)
					}
				})
			}
		})
	}
}

// Calling Via twice makes a round robin.
func TestViaTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlumbing(t, optest.Mode{Ordered: true, Capacity: 4}, 0, nil)
		f := p.source.Via(p.same())
		const text = "takes the elements already; several branches need flow.FanOut"
		refused := flow.NewPassThrough()
		requirePanics(t, text, func() { p.source.Via(refused) })
		p.end(f)
		synctest.Wait()
		requirePanics(t, text, func() { f.Via(refused) })
		requirePanics(t, text, func() { f.To(toSink{refused}) })
		close(refused.In())
		require.NoError(t, p.run())
	})
}

func requirePanics(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		require.Contains(t, fmt.Sprint(recover()), text)
	}()
	f()
}
