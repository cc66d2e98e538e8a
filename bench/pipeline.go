package bench

import (
	"errors"
	"fmt"
	"sync"

	"github.com/reugn/go-streams"
	ext "github.com/reugn/go-streams/extension"
)

type stages struct {
	flows []streams.Flow
	err   func() error // may be nil
}

func oneStage(f streams.Flow) stages { return stages{flows: []streams.Flow{f}} }

// pipeline is a complete go-streams pipeline: source → flows → sink. A goroutine feeds
// the source; the goroutine that runs the pipeline checks the output.
type pipeline struct {
	elems   int
	ends    int  // buffer of source and sink
	ordered bool // the output must be in input order
	values  bool // elements are Value instead of *Item

	items []Item              // set by prepare unless given
	calls func(seq int) int32 // expected calls per element, or nil

	// Optional hooks.
	fed      func()          // called after the last element; then the source ends
	received func(seq int)   // called in the sink for each element
	each     func(seq int)   // called in the source before each element
	elem     func(i int) any // set by prepare
	seq      func(e any) int // set by prepare
}

// Value is an element that does not fit into an interface without an allocation.
type Value struct{ Seq int }

// firstValue is beyond the small integers that are boxed without an allocation.
const firstValue = 1 << 20

// prepare makes the elements, outside the measured interval.
func (p *pipeline) prepare() {
	if p.values {
		p.elem = func(i int) any { return Value{firstValue + i} }
		p.seq = func(e any) int { return e.(Value).Seq - firstValue }
		return
	}
	if p.items == nil {
		p.items = newItems(p.elems)
	}
	p.elem = func(i int) any { return &p.items[i] }
	p.seq = func(e any) int { return e.(*Item).Seq }
}

func (p *pipeline) measure(m *Meter, build func() stages) error {
	p.prepare()
	m.Start()
	err := p.run(build())
	m.Stop()
	if err != nil {
		return err
	}
	return p.checkCalls()
}

// run feeds all elements and returns when the sink has ended, with an error if the output
// is wrong.
func (p *pipeline) run(st stages) error {
	source, sink := make(chan any, p.ends), make(chan any, p.ends)
	go p.feed(source)
	go func() {
		last := streams.Flow(nil)
		for _, f := range st.flows {
			if last == nil {
				last = ext.NewChanSource(source).Via(f)
			} else {
				last = last.Via(f)
			}
		}
		last.To(ext.NewChanSink(sink))
	}()

	err := p.check(sink)
	if st.err != nil {
		err = errors.Join(err, st.err())
	}
	return err
}

func (p *pipeline) check(sink <-chan any) error {
	c := p.checker()
	for e := range sink {
		seq := p.seq(e)
		c.Saw(seq)
		if p.received != nil {
			p.received(seq)
		}
	}
	return c.Err()
}

func (p *pipeline) feed(source chan<- any) {
	defer close(source)
	for i := range p.elems {
		if p.each != nil {
			p.each(i)
		}
		source <- p.elem(i)
	}
	if p.fed != nil {
		p.fed()
	}
}

func (p *pipeline) checkCalls() error {
	if p.calls == nil || p.values {
		return nil
	}
	for i := range p.items {
		if got, want := p.items[i].Calls, p.calls(i); got != want {
			return fmt.Errorf("element %d: %d calls, want %d", i, got, want)
		}
	}
	return nil
}

func (p *pipeline) checker() *Checker {
	return NewChecker(p.elems, p.ordered)
}

// Checker checks the output's sequence numbers. It is owned by the sink's goroutine.
type Checker struct {
	ordered bool
	seen    []uint8
	count   int
	bad     error
}

// NewChecker expects the numbers 0 to n-1, each once, in order if ordered.
func NewChecker(n int, ordered bool) *Checker {
	return &Checker{ordered: ordered, seen: make([]uint8, n)}
}

// All reports whether all expected elements have come out.
func (c *Checker) All() bool { return c.count == len(c.seen) }

// Saw records an element that came out.
func (c *Checker) Saw(seq int) {
	switch {
	case c.bad != nil:
	case seq < 0 || seq >= len(c.seen):
		c.bad = fmt.Errorf("element %d was never sent", seq)
	case c.seen[seq] != 0:
		c.bad = fmt.Errorf("element %d came twice", seq)
	case c.ordered && seq != c.count:
		c.bad = fmt.Errorf("element %d came as number %d", seq, c.count)
	default:
		c.seen[seq] = 1
	}
	c.count++
}

// Err returns the first error, or nil.
func (c *Checker) Err() error {
	if c.bad == nil && c.count != len(c.seen) {
		c.bad = fmt.Errorf("%d of %d elements came out", c.count, len(c.seen))
	}
	return c.bad
}

func parallel(k int, run func(i int) error) error {
	errs := make([]error, k)
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { errs[i] = run(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
