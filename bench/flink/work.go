package flink

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/weirflow/weir/bench"
)

// Functions that a work calls for each element, with the names of the Java code.
const (
	inline   = "inline"   // completes at once
	pool     = "pool"     // blocks, but returns at once, on threads or goroutines
	callback = "callback" // completed by the backend after a while
	cache    = "cache"    // completes at once, except one element in twenty, which is like callback
	park     = "park"     // fails at first, so that all elements wait for a retry
)

// threads is the size of the Java pool, and weir's limit of blocking calls.
const threads = 64

type work struct {
	workload, variant, title string

	fn       string
	ordered  bool
	bare     bool // without timeout and retries
	fails    bool // one element in ten fails at first
	n        int
	unordN   int // elements in unordered mode, if not n: where the order makes everything wait
	capacity int
	calls    int           // limit of concurrent calls; 0 means capacity
	answer   time.Duration // of a callback
	delay    time.Duration // of a retry; default 100 ms
}

// Timeout and retries of an element, unless its work is bare.
const (
	timeout    = 10 * time.Second
	maxRetries = 3
)

// works returns all works, each in both modes.
func works(short bool) []work {
	const micro, milli = time.Microsecond, time.Millisecond
	all := []work{
		{workload: "W1", title: "completes at once, timeout and retry armed", fn: inline, n: 500_000, capacity: 1_000},
		{
			workload: "W1", variant: "armed=nothing", title: "completes at once, nothing armed", fn: inline, bare: true,
			n: 500_000, capacity: 1_000,
		},
		{
			workload: "W1b", variant: "capacity=64", title: "blocking, returns at once, capacity 64", fn: pool,
			n: 100_000, capacity: 64,
		},
		{
			workload: "W1b", variant: "capacity=1000", title: "blocking, returns at once, capacity 1,000", fn: pool,
			n: 100_000, capacity: 1_000,
		},
		{
			workload: "W2", variant: "inflight=100", title: "calls back after 1 ms, 100 in flight", fn: callback,
			answer: milli, n: 20_000, capacity: 100,
		},
		{
			workload: "W2", variant: "inflight=1000", title: "calls back after 1 ms, 1,000 in flight", fn: callback,
			answer: milli, n: 150_000, capacity: 1_000,
		},
		{
			workload: "W2", variant: "inflight=10000", title: "calls back after 1 ms, 10,000 in flight", fn: callback,
			answer: milli, n: 300_000, capacity: 10_000,
		},
		{
			workload: "W3", title: "10 % retried after 10 ms, capacity 1,000", fn: callback, fails: true,
			answer: 200 * micro, delay: 10 * milli, n: 40_000, unordN: 150_000, capacity: 1_000,
		},
		{
			workload: "W3", variant: "slots=20000", title: "the same, 20,000 slots, 1,000 calls at once", fn: callback, fails: true,
			answer: 200 * micro, delay: 10 * milli, n: 150_000, capacity: 20_000, calls: 1_000,
		},
		{
			workload: "W3b", title: "10 % retried after 100 ms, capacity 100", fn: callback, fails: true,
			answer: 200 * micro, delay: 100 * milli, n: 1_000, unordN: 5_000, capacity: 100,
		},
		{
			workload: "W3b", variant: "slots=20000", title: "the same, 20,000 slots, 100 calls at once", fn: callback, fails: true,
			answer: 200 * micro, delay: 100 * milli, n: 100_000, capacity: 20_000, calls: 100,
		},
		{
			workload: "W17", title: "95 % complete at once, 5 % after 1 ms", fn: cache,
			answer: milli, n: 500_000, capacity: 10_000,
		},
		{workload: "W4", title: "all wait for a retry at once", fn: park, n: 200_000, capacity: 200_001},
	}
	var both []work
	for _, w := range all {
		w.delay = cmp.Or(w.delay, 100*milli)
		if short {
			w.n, w.unordN = min(w.n, 2_000), 0
			w.capacity = min(w.capacity, w.n+1)
			w.delay = min(w.delay, 10*milli)
		}
		for _, ordered := range []bool{true, false} {
			w.ordered = ordered
			if !ordered {
				w.n = cmp.Or(w.unordN, w.n)
			}
			both = append(both, w)
		}
	}
	return both
}

func (w work) mode() string {
	if w.ordered {
		return "ordered"
	}
	return "unordered"
}

func (w work) group() bench.Group {
	g := bench.Group{Workload: w.workload, Variant: "mode=" + w.mode(), Title: w.title, Elems: w.n}
	if w.variant != "" {
		g.Variant += "/" + w.variant
	}
	if w.fn == park {
		g.Key = bench.LiveBytes
	}
	return g
}

// line formats the work for the Java side, with delays in milliseconds.
func (w work) line(driver string, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "driver=%s fn=%s mode=%s armed=%t fail=%t n=%d capacity=%d calls=%d threads=%d answer_us=%d delay_ms=%d timeout_ms=%d",
		driver, w.fn, w.mode(), !w.bare, w.fails, n, w.capacity, w.calls, threads,
		w.answer.Microseconds(), w.delay.Milliseconds(), timeout.Milliseconds())
	if w.fn == park {
		base, spread := bench.ParkTimes(n)
		base = max(base, 3*time.Second) // enough for two collections of the JVM
		fmt.Fprintf(&b, " base_ms=%d spread_ms=%d", base.Milliseconds(), spread.Milliseconds())
	}
	return b.String()
}

// busy returns the work for warming up the JIT: many quick calls.
func (w work) busy(short bool) (work, int) {
	if w.fn == callback {
		w.capacity = 10_000
		w.calls = 0
		w.answer = 200 * time.Microsecond
		w.delay = 5 * time.Millisecond
	}
	if short {
		return w, 2_000
	}
	return w, 400_000
}
