package delivery

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// jobsEngine is an engine that keeps jobs, with a worker's queues on it.
type jobsEngine struct {
	engine       store.Keeper
	queues       []string
	sourceQueues []string // queues whose messages the worker takes: its source, and first sources
}

// enginesOf returns the engines of a worker's source and sink that keep jobs.
func enginesOf[IN, OUT any](source Source[IN], sink Sink[OUT]) (all []jobsEngine) {
	for _, read := range queuesOf(source) {
		all = addQueue(all, read, true)
	}
	written, isWritten := sink.(OnEngine)
	if isWritten {
		all = addQueue(all, written, false)
	}
	return all
}

func addQueue(all []jobsEngine, q OnEngine, isRead bool) []jobsEngine {
	keeper, isKeeper := q.Engine().(store.Keeper)
	if !isKeeper {
		return all
	}
	at := slices.IndexFunc(all, func(h jobsEngine) bool { return storearg.IsSame(h.engine, keeper) })
	if at < 0 {
		at, all = len(all), append(all, jobsEngine{engine: keeper})
	}
	if isRead && !slices.Contains(all[at].sourceQueues, q.Name()) {
		all[at].sourceQueues = append(all[at].sourceQueues, q.Name())
	}
	if !slices.Contains(all[at].queues, q.Name()) {
		all[at].queues = append(all[at].queues, q.Name())
	}
	return all
}

// unsupportedOf returns an error if an engine lacks an ability that a worker's queue
// needs.
func unsupportedOf[IN, OUT any](source Source[IN], sink Sink[OUT]) error {
	if q, ok := ofSource[*Queue[IN]](source); ok && q.unsupported != nil {
		return q.unsupported
	}
	if q, ok := sink.(*Queue[OUT]); ok && q.unsupported != nil {
		return q.unsupported
	}
	return nil
}

// sameQueue reports whether a worker reads the queue that is its sink, and the engine
// keeps one message of an id.
func sameQueue[IN, OUT any](source Source[IN], sink Sink[OUT]) bool {
	written, ok := sink.(*Queue[OUT]) // a sink that embeds a queue may give results other ids
	return ok && hasLeases(written.engine) && readsFrom(source, written.name, written.engine)
}

func readsFrom[T any](source Source[T], name string, engine store.Engine) bool {
	return slices.ContainsFunc(queuesOf(source), func(q OnEngine) bool {
		return q.Name() == name && storearg.IsSame(q.Engine(), engine)
	})
}

// queuesOf returns the queues whose messages a source returns: its own, and the queues of
// first sources ([Queue.Source]).
func queuesOf[T any](source Source[T]) (all []OnEngine) {
	eachSource(source, func(s Source[T]) bool {
		q, isOnEngine := s.(OnEngine)
		if isOnEngine {
			all = append(all, q)
		}
		of, isOfQueue := s.(*queueSource[T])
		if isOfQueue && of.first != nil {
			all = append(all, queuesOf(of.first)...)
		}
		return !isOnEngine // its further sources are of the same queue
	})
	return all
}

// startJobs runs jobs of engines beside the messages, and reports this worker there,
// until end is called.
func (w *worker[IN, OUT]) startJobs(ctx context.Context, engines []jobsEngine) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	aborted := context.AfterFunc(w.working, cancel) // the jobs end when the messages are released
	var working sync.WaitGroup
	w.mu.Lock()
	w.offsets = make([]time.Duration, len(engines))
	w.mu.Unlock()
	for i, h := range engines {
		config := jobs.Config{Clock: w.clock, Logger: w.logger, Offset: func(d time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.offsets[i] = d
		}}
		if len(h.sourceQueues) > 0 {
			w.obeyOrders(ctx, i, h, &config)
		}
		j, err := jobs.New(h.engine, config)
		if err != nil {
			w.logger.Warn("delivery: this worker does not run jobs", slog.Any("error", err))
			if len(h.sourceQueues) > 0 {
				w.takePauses(i, h.sourceQueues, nil, err)
			}
			continue
		}
		working.Go(func() { // ends with ctx
			j.Work(ctx, func() jobs.Worker { return w.report(h) }, w.steerFunc())
		})
		w.startRecoveries(h, working.Go)
	}
	return func() {
		aborted()
		cancel()
		ended := make(chan struct{})
		go func() { // ends with the jobs
			working.Wait()
			close(ended)
		}()
		limit := w.clock.Timer(closeWait)
		defer limit.Stop()
		select {
		case <-ended:
		case <-limit.C: // the engine does not answer
		}
	}
}

// obeyOrders makes the worker obey people's orders on an engine from which it takes
// messages. ctx ends with the jobs.
func (w *worker[IN, OUT]) obeyOrders(ctx context.Context, engine int, h jobsEngine, config *jobs.Config) {
	config.QueuesPaused = func(paused []jobs.QueueOrder, err error) { w.takePauses(engine, h.sourceQueues, paused, err) }
	if w.held.canHold {
		config.KeysHeld = func(held []jobs.KeyOrder, err error) { w.takeHeldKeys(engine, h.sourceQueues, held, err) }
	}
	if w.purges != nil {
		config.Busy = func() bool { return w.unsettled() > 0 }
		config.Cancelled = func(queue, key string) {
			if slices.Contains(h.sourceQueues, queue) {
				w.purges.LookForPurged(ctx, key)
			}
		}
	}
}

const mostGroups = 5

func (w *worker[IN, OUT]) report(h jobsEngine) jobs.Worker {
	report := jobs.Worker{Queues: h.queues}
	if len(h.sourceQueues) > 0 {
		report.Reads = h.sourceQueues[0]
		report.ReadsFirst = h.sourceQueues[1:]
		report.Paused = w.paused()
		report.HoldsKeys = w.held.canHold
	}
	w.mu.Lock()
	counts := struct {
		Summary
		Redelivered int // see Status.Redelivered
	}{w.counts, w.redelivered}
	w.mu.Unlock()
	counts.Elapsed = w.clock.Since(w.begun)
	report.Counts, _ = json.Marshal(counts) // numbers only
	if op, ok := w.op.(operatorWithStats); ok {
		s := struct {
			asyncop.Stats
			LastError string
			Groups    []observe.Group // the largest
		}{Stats: op.Stats()}
		if op, ok := w.op.(operatorWithGroups); ok {
			s.Groups = op.Groups()
			s.Groups = s.Groups[:min(len(s.Groups), mostGroups)]
		}
		if s.Stats.LastError != nil {
			s.LastError = guard.Text(s.Stats.LastError)
		}
		s.Stats.LastError = nil
		if b, err := json.Marshal(s); err == nil {
			report.Operators = []json.RawMessage{b}
		}
	}
	if b := w.backend(); b != nil {
		report.Backends = []jobs.Backend{reportOf(b)}
		report.KeysDown = w.keysDown(b)
	}
	return report
}

const mostKeysDown = 256

// keysDown reports the keys that are down at the operator's backend. It returns nil if
// its tenants are not the keys of messages.
func (w *worker[IN, OUT]) keysDown(b gate.Backend) (list []jobs.KeyDown) {
	if !w.tenantsAreKeys() {
		return nil
	}
	for _, r := range b.TenantsDown(mostKeysDown) {
		if utf8.ValidString(r.Tenant) { // JSON would change the others
			list = append(list, jobs.KeyDown{Key: r.Tenant, State: r.State, Why: shortened(r.Why), Since: r.Since})
		}
	}
	return list
}

// shortened bounds a reason in the report of keys: an engine may refuse a large report.
func shortened(why string) string {
	const most = 300
	if len(why) <= most {
		return why
	}
	return strings.ToValidUTF8(why[:most], "") + "…"
}

func reportOf(b gate.Backend) jobs.Backend {
	r := b.Report()
	report := jobs.Backend{
		Name: r.Name, State: r.State, Why: r.Why, Since: r.Since, Until: r.Until, Limit: r.Limit, Fleet: r.Fleet, InUse: r.InUse, Waiting: r.Waiting,
	}
	for _, s := range r.States {
		report.States = append(report.States, jobs.BackendState(s))
	}
	return report
}

func (w *worker[IN, OUT]) backend() gate.Backend {
	if op, ok := w.op.(operatorWithBackend); ok {
		return gate.Of(op.Backend())
	}
	return nil
}

// restrictKeys makes the source leave out the keys whose tenants are down at the
// operator's backend, if the tenants are the keys.
func (w *worker[IN, OUT]) restrictKeys() {
	b := w.backend()
	if b != nil && w.tenantsAreKeys() {
		w.keys.RestrictKeys(b.Restrictions)
	}
}

func (w *worker[IN, OUT]) tenantsAreKeys() bool {
	op, isKnown := w.op.(operatorWithTenants)
	return isKnown && op.TenantsAreKeys()
}

// steerFunc returns a function that passes orders to the operator's backend, or nil.
func (w *worker[IN, OUT]) steerFunc() func(jobs.BackendOrder) {
	b := w.backend()
	if b == nil {
		return nil
	}
	name := b.Report().Name
	return func(o jobs.BackendOrder) {
		if o.Backend != name {
			return
		}
		order := gate.Order{At: o.At, Held: o.Held != "", Resumes: o.Event == "resume", Why: o.Held, Limit: -1}
		if o.Limit != nil {
			order.Limit = *o.Limit
		}
		b.Steer(order)
	}
}
