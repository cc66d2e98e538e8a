package flink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	ext "github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/bench"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type operator = asyncop.AsyncWaitOperator[int64, int64]

// drivers are the ways to run weir's operator, each a row of every group. A new driver
// needs an entry here, in bench.Series, and in aims.
var drivers = []struct {
	impl  string
	drive func(r *run, op *operator) error
}{
	{"weir", (*run).flow},
	{"weir-results", (*run).results},
	{"weir-chained", (*run).chained},
}

func weirRows(w work) []bench.Row {
	if w.fn == park {
		return parkRows(w)
	}
	var rows []bench.Row
	for _, d := range drivers {
		measured := func(m *bench.Meter, n int) error { return newRun(w, m, n).operate(d.drive) }
		rows = append(rows, bench.Row{Impl: d.impl, Kind: bench.Weir, Run: measured})
		if w.fn == inline {
			rows = append(rows, bench.Row{
				Impl: fmt.Sprintf("%s-gogc-%d", d.impl, roomyGC), Kind: bench.Weir,
				Run: func(m *bench.Meter, n int) error {
					defer debug.SetGCPercent(debug.SetGCPercent(roomyGC))
					return measured(m, n)
				},
			})
		}
	}
	if hasBackendRow(w) {
		rows = append(rows, bench.Row{Impl: "go-backend", Kind: bench.Floor, Run: func(m *bench.Meter, n int) error {
			return newRun(w, m, n).floor()
		}})
	}
	return rows
}

// parkRows returns bench's own W4 rows.
func parkRows(w work) []bench.Row {
	for _, g := range bench.Groups(bench.Config{Elems: w.n}) {
		if i := slices.IndexFunc(g.Rows, func(r bench.Row) bool { return r.Impl == "weir-"+w.mode() }); g.Workload == "W4" && i >= 0 {
			row := g.Rows[i]
			row.Impl = "weir"
			return []bench.Row{row}
		}
	}
	panic("bench has no row weir-" + w.mode() + " of W4")
}

type run struct {
	work
	n      int
	meter  *bench.Meter
	check  *bench.Checker
	called []uint8       // calls by element; written by the goroutine of the call
	allOut chan struct{} // closed when all results have come out
}

func newRun(w work, m *bench.Meter, n int) *run {
	return &run{
		work: w, n: n, meter: m, check: bench.NewChecker(n, w.ordered),
		called: make([]uint8, n), allOut: make(chan struct{}),
	}
}

// received records a result. The last one ends the measured interval.
func (r *run) received(v int64) {
	r.check.Saw(int(v))
	if r.check.All() {
		r.meter.Stop()
		close(r.allOut)
	}
}

func (r *run) operate(drive func(*run, *operator) error) error {
	r.meter.Start()
	fn, end := r.function()
	err := drive(r, r.operator(fn))
	end()
	err = cmp.Or(err, r.check.Err())
	if err != nil {
		return err
	}
	for i, got := range r.called {
		want := uint8(1)
		if r.fails && bench.FailsFirst(i) {
			want = 2
		}
		if got != want {
			return fmt.Errorf("element %d: %d calls, want %d", i, got, want)
		}
	}
	return nil
}

// results runs the operator with Results. Like on the Java side, the input ends after all
// results have come out.
func (r *run) results(op *operator) error {
	input := func(yield func(int64) bool) {
		for i := range int64(r.n) {
			if !yield(i) {
				return
			}
		}
		<-r.allOut
	}
	for v, err := range op.Results(input) {
		if err != nil {
			return err
		}
		r.received(v)
	}
	return nil
}

// chained runs the operator with ResultsOf. Its input ends at once, but the operator
// still makes all retries.
func (r *run) chained(op *operator) error {
	next := int64(0)
	input := func() (v int64, ok bool) {
		v = next
		next++
		return v, v < int64(r.n)
	}
	for v, err := range op.ResultsOf(input) {
		if err != nil {
			return err
		}
		r.received(v)
	}
	return nil
}

func (r *run) flow(op *operator) error {
	source, sink := make(chan any), make(chan any)
	go func() {
		defer close(source)
		for i := range int64(r.n) {
			source <- i
		}
		<-r.allOut
	}()
	go ext.NewChanSource(source).Via(op).To(ext.NewChanSink(sink))
	for v := range sink {
		r.received(v.(int64))
	}
	return op.Wait()
}

func (r *run) operator(fn asyncop.AsyncFunction[int64, int64]) *operator {
	var opts []asyncop.Option
	switch {
	case r.work.calls > 0:
		opts = append(opts, asyncop.WithMaxConcurrentCalls(r.work.calls))
	case r.fn == pool:
		opts = append(opts, asyncop.WithMaxConcurrentCalls(threads))
	}
	limit, strategy := timeout, strategies.Retry[int64](strategies.FixedDelay[int64](maxRetries, r.delay).
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException))
	if r.bare {
		limit, strategy = 0, strategies.NoRetry[int64]()
	}
	if r.ordered {
		return asyncop.OrderedWaitWithRetry(fn, limit, r.capacity, strategy, opts...)
	}
	return asyncop.UnorderedWaitWithRetry(fn, limit, r.capacity, strategy, opts...)
}

// One element in missEvery misses the cache.
const missEvery = 20

var errUnavailable = errors.New("not ready yet")

// function returns the function called for each element, and one to call after the end.
func (r *run) function() (fn asyncop.AsyncFunction[int64, int64], end func()) {
	switch r.fn {
	case inline:
		return asyncop.Func(func(_ context.Context, v int64, result asyncop.ResultFuture[int64]) error {
			r.called[v]++
			result.Complete(v)
			return nil
		}), func() {}
	case pool:
		return asyncop.Blocking(func(_ context.Context, v int64) (int64, error) {
			r.called[v]++
			return v, nil
		}), func() {}
	}
	b := newBackend(r.answer, func(c pending) {
		if c.fails {
			c.result.CompleteExceptionally(errUnavailable)
		} else {
			c.result.Complete(c.seq)
		}
	})
	return asyncop.Func(func(_ context.Context, v int64, result asyncop.ResultFuture[int64]) error {
		fails := r.fails && r.called[v] == 0 && bench.FailsFirst(int(v))
		r.called[v]++
		if r.fn == cache && v%missEvery != 0 {
			result.Complete(v)
			return nil
		}
		b.call(pending{seq: v, fails: fails, result: result})
		return nil
	}), b.close
}

// floor shows the backend's limit: a semaphore with as many permits as calls, without an
// operator.
func (r *run) floor() error {
	permits := make(chan struct{}, cmp.Or(r.work.calls, r.capacity))
	b := newBackend(r.answer, func(c pending) {
		r.received(c.seq)
		<-permits
	})
	defer b.close()
	r.meter.Start()
	for i := range int64(r.n) {
		permits <- struct{}{}
		b.call(pending{seq: i})
	}
	select {
	case <-r.allOut:
		return r.check.Err()
	case <-time.After(time.Minute):
		return errors.New("the backend has not answered all calls within a minute")
	}
}
