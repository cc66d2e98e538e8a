package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// How often the engines are asked, and how long an answer may take.
const (
	askAgain   = 10 * time.Second // after an answer, however often probes come
	askFailing = time.Second      // without an answer
	answerWait = 2 * time.Second
)

// Monitor reports the state of a [Run] while it runs: for metrics, and for the probes of
// Kubernetes or a load balancer.
//
//	monitor := &delivery.Monitor{}
//	http.Handle("/healthz", monitor)
//	http.Handle("/readyz", monitor)
//	…
//	summary, err := delivery.Run(ctx, orders, op, receipts, delivery.WithMonitor(monitor))
//
// It belongs to a single Run at a time, and adds up several in a row. The zero value is
// ready for use; it must not be copied. Methods are safe for concurrent use.
type Monitor struct {
	mu      sync.Mutex
	run     func() Status // of the current Run, or nil
	before  Status        // sums of the Runs that have ended
	engines []jobsEngine
	clock   clock.Clock

	asking sync.Mutex // guards the fields below; held while engines are asked
	asked  time.Time
	answer error
}

// Status is the state and the summary so far of a worker.
type Status struct {
	Summary         // of all Runs of the monitor; Received - InFlight is the sum of the settlements
	InFlight    int // received, and not settled
	Redelivered int // of Received: had failed in an earlier visit, so Meta.Visit was above 1
	// LeasesLost is how many messages were delivered again while the worker had them,
	// because their leases were not extended in time. A source that is not a queue counts
	// them if it has a method LeasesLost() int.
	LeasesLost int
	// SettlementsRefused is how often the engine has refused to record how a message was
	// settled: see docs/dead-letters.md. Only a source that is a queue counts them.
	SettlementsRefused int
	// ClockOffset is how far the engine's clock was ahead of the machine's at the last
	// heartbeat, which comes every 20 s; 0 if no engine keeps jobs (package jobs). With
	// two engines it is the larger offset.
	ClockOffset time.Duration

	// State is one of:
	//
	//	starting   no Run has begun to receive
	//	receiving  also while it waits for messages, or for room in its operator
	//	failing    the last Receive has failed, and is tried again
	//	flooded    the flood guard has stopped it (WithFloodGuard)
	//	paused     people have paused its queue (jobs.Jobs.PauseQueue)
	//	draining   it has stopped receiving
	//	ended      Run has returned
	State string
	// Err is why it fails, is flooded, is paused, drains or has ended; nil if it was
	// asked to drain or end.
	Err error
}

// Status returns the current status of the worker.
func (m *Monitor) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		s := m.before
		if s.State == "" {
			s.State = "starting"
		}
		return s
	}
	return m.before.plus(m.run())
}

// Ready returns nil if the worker receives, or people have paused its queue, and its
// engines answer, else the reason. It asks the engines that keep jobs, at most once in
// ten seconds while they answer, for two seconds at most. A failure of another source
// shows in Receive.
func (m *Monitor) Ready(ctx context.Context) error {
	s := m.Status()
	switch {
	case s.State == "receiving", s.State == "paused": // a rollout does not wait for the end of a pause
		return m.ask(ctx)
	case s.Err != nil:
		return fmt.Errorf("delivery: the worker is %s: %w", s.State, s.Err)
	}
	return errors.New("delivery: the worker is " + s.State)
}

// ServeHTTP answers requests whose path ends with healthz or readyz: 200, or 503 with the
// reason. Healthz fails only when Run has returned, since restarting the process would
// not repair an engine. Readyz fails when [Monitor.Ready] does. The reason may name hosts
// and tables: do not expose it publicly.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var err error
	switch path.Base(r.URL.Path) {
	case "healthz":
		if s := m.Status(); s.State == "ended" {
			err = errors.Join(errors.New("delivery: the worker has ended"), s.Err)
		}
	case "readyz":
		err = m.Ready(r.Context())
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	text := "ok"
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = guard.Text(err)
	}
	_, _ = io.WriteString(w, text+"\n") // the client has left
}

// ask returns nil if the engines answer.
func (m *Monitor) ask(ctx context.Context) error {
	m.asking.Lock()
	defer m.asking.Unlock()
	m.mu.Lock()
	engines, c := m.engines, m.clock
	m.mu.Unlock()
	if len(engines) == 0 {
		return nil
	}
	again := askAgain
	if m.answer != nil {
		again = askFailing
	}
	if !m.asked.IsZero() && c.Since(m.asked) < again {
		return m.answer
	}
	asking, cancel := context.WithTimeoutCause(ctx, answerWait, fmt.Errorf("no answer within %v", answerWait))
	defer cancel()
	var failed error
	for _, h := range engines {
		if _, err := h.engine.Records(asking, "weir-ready", "", 1); err != nil {
			if cause := context.Cause(asking); cause != nil {
				err = cause
			}
			failed = fmt.Errorf("delivery: the engine of queue %q does not answer: %w", h.queues[0], err)
			break
		}
	}
	if ctx.Err() == nil { // otherwise the engines may not have failed
		m.asked, m.answer = c.Now(), failed
	}
	return failed
}

func (m *Monitor) begin(run func() Status, engines []jobsEngine, c clock.Clock) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		panic("delivery: Run: another Run has this monitor (WithMonitor)")
	}
	m.run = run
	m.engines = engines
	m.clock = c
}

// release undoes begin for a Run that could not begin.
func (m *Monitor) release() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run, m.engines = nil, nil
}

func (m *Monitor) end(s Summary, err error) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.run()
	last.Summary = s
	last.InFlight = 0
	last.State = "ended"
	last.Err = err
	m.before = m.before.plus(last)
	m.run = nil
	m.engines = nil
}

// plus returns the sum of s and then t.
func (s Status) plus(t Status) Status {
	t.Received += s.Received
	t.Done += s.Done
	t.HandedOver += s.HandedOver
	t.Rejected += s.Rejected
	t.Failed += s.Failed
	t.Released += s.Released
	t.Purged += s.Purged
	t.Floods += s.Floods
	t.Elapsed += s.Elapsed
	t.Redelivered += s.Redelivered
	t.LeasesLost += s.LeasesLost
	t.SettlementsRefused += s.SettlementsRefused
	return t
}

func (w *worker[IN, OUT]) status() Status {
	w.mu.Lock()
	leases, refusals := w.leases, w.refusals
	w.mu.Unlock()
	lost, refused := 0, 0
	if leases != nil {
		lost = leases.LeasesLost()
	}
	if refusals != nil {
		refused = refusals.SettlementsRefused()
	}
	pause := w.pausing.err()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{
		Summary: w.counts, InFlight: w.counts.Received - w.settled, Redelivered: w.redelivered, LeasesLost: lost,
		SettlementsRefused: refused, State: "receiving",
	}
	for _, d := range w.offsets {
		if d.Abs() > s.ClockOffset.Abs() {
			s.ClockOffset = d
		}
	}
	s.Elapsed = w.clock.Since(w.begun)
	switch {
	case w.receiving.Err() != nil:
		s.State = "draining"
		if err := context.Cause(w.receiving); !errors.Is(err, errDrained) && !errors.Is(err, context.Canceled) {
			s.Err = err
		}
	case w.failing != nil && (w.askedAt.IsZero() || w.clock.Since(w.askedAt) < lastWait): // later it waits for messages
		s.State, s.Err = "failing", w.failing
	case pause != nil:
		s.State, s.Err = "paused", pause
	case w.flood.stopped:
		s.State, s.Err = "flooded", w.flood.err
	case !w.hasAsked:
		s.State = "starting"
	}
	return s
}
