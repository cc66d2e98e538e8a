package drive

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/timers"
)

// turnLimit bounds what one kind of work does in one step, so that everything gets its turn.
const turnLimit = 128

// Driver is the loop of an operator: it moves elements into the core and results out of it, through the channels of a
// go-streams flow or, if Results drives the operator, through rings.
type Driver[IN, OUT any] struct {
	Config[IN, OUT] // read-only

	core      *core.Machine[IN, OUT]               // owned by the loop
	messages  *core.Messages[IN, OUT]              // of it
	observing *core.Observing[IN, OUT]             // of it; nil: no observers
	batches   *core.Batches[IN, OUT]               // of it; nil: no batches
	sink      *core.HandOver[IN, OUT]              // of it; nil: no failure sink
	timers    *timers.Service[*core.Slot[IN, OUT]] // owned by the loop
	host      *call.Host                           // used by other goroutines, too
	workers   *call.Workers[IN, OUT]               // used by other goroutines, too

	in       chan any                            // upstream sends and closes; the loop receives
	out      chan any                            // the loop sends and closes; downstream receives
	attached atomic.Pointer[attachment[IN, OUT]] // what the loop goes on with

	// Owned by the loop.
	current     *attachment[IN, OUT]           // that the loop has
	inClosed    bool                           // upstream has closed in
	inOver      bool                           // nothing more is taken
	plain       bool                           // what has the type IN is an element: no control element, and, since that was refused, no message
	letsIn      bool                           // an element that is read may take a slot; set by mayRead
	marked      bool                           // the marker of the end of the input has come: only barriers follow
	drains      bool                           // the end of the input lets retries go on
	backlog     fifo.Queue[core.Item[IN, OUT]] // what goes into the queue before anything new
	checks      *checkpointing[IN, OUT]        // nil: no part in checkpoints
	barriers    wiring.Barriers                // that have come
	final       bool                           // the last of them is the final one
	runEnded    <-chan struct{}                // closed when the run of the coordinator ends; nil: that was noticed, or there is none
	upNext[OUT]                                // what is emitted next
	emitted     int64                          // results
	leaving     fifo.Queue[leaving]            // observed elements whose results are in a ring
	jobs        []call.Job[IN, OUT]            // that were started and not offered to the workers
	offered     int                            // jobs that were offered in the last step
	opened      bool
	closer      func() error   // Close, until it was called or must not be
	yielded     bool           // since there was something to do
	shut        bool           // a gate was, when the loop last looked
	unwatch     func() bool    // ends the watch on the operator's context
	upstream    sync.WaitGroup // cancelUpstream's call

	timerDue  atomic.Bool   // maybe: a body that ranges over the results on the loop's goroutine makes way for it
	stopping  atomic.Bool   // Stop was called
	inputErr  sharedError   // that the input of Results has ended or broken with; set before its ring is ended
	err       sharedError   // set before over is closed
	over      chan struct{} // closed by the loop before out: err is final
	done      chan struct{} // closed by the loop when all is done
	discarded atomic.Int64  // elements that came too late
	brokeOff  bool          // a loop over the results was left early; set before done is closed
	delivery  delivery      // of results, by Via or To
	wired     atomic.Bool   // in was handed out
	inletOver atomic.Bool   // what comes through in is discarded
	discards  sync.Once
	waiting   atomic.Bool // for a gate, which will say when it is open
	published published   // read by other goroutines
}

// upNext is what is emitted next; zero if that is not known.
type upNext[OUT any] struct {
	loaded     bool                   // it is known
	barrier    bool                   // it is a barrier that passes ahead of the queue; if not, it comes from the head of that
	next       any                    // it, as out carries it; nil: a result that no channel has carried yet
	results    []OUT                  // of the head: those that are left to be emitted, it included
	numResults int                    // how many results the head has
	message    call.Message           // that the head is
	parts      []message.Message[OUT] // of that message, which are left to be emitted, if the head has several results
}

// In returns the channel of an upstream, which will close it: Wire is called before anything is sent.
func (d *Driver[IN, OUT]) In() chan<- any { return d.in }

// Wire says that there is an upstream.
func (d *Driver[IN, OUT]) Wire() {
	d.wired.Store(true)
	d.startDiscarding()
}

// New returns a driver that does not run yet: see Start.
func New[IN, OUT any](cfg Config[IN, OUT]) *Driver[IN, OUT] {
	d := &Driver[IN, OUT]{
		Config: cfg,
		in:     make(chan any, cfg.Buffer),
		out:    make(chan any, cfg.Buffer),
		plain:  reflect.TypeFor[IN]().Kind() != reflect.Interface && !participant.IsControl(*new(IN)),
		drains: cfg.DrainRetries,
		closer: cfg.Close,
		over:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	d.workers = call.NewWorkers(cfg.Direct)
	d.host = &call.Host{
		User:     cfg.Context,
		Values:   call.WithoutMessage(context.WithoutCancel(cfg.Context)),
		RealTime: reflect.TypeOf(cfg.Clock) == reflect.TypeOf(clock.New()),
		Run:      func(task func()) { d.workers.Run(call.Job[IN, OUT]{Task: task}) },
		Sleeper:  call.NewSleeper(),
	}
	if b := cfg.Backend; b != nil {
		lent := 0
		if cfg.Context.Value(call.BackendKey{Backend: b}) != nil {
			lent = 1
		}
		d.host.Backend, d.host.Seat = b, b.Attach(&d.host.Sleeper, lent)
	}
	if d.host.Around = call.ReporterIn(cfg.Context); d.host.Around != nil && len(cfg.Observers) > 0 {
		d.host.Around = call.NotDeduplicated{Reporter: d.host.Around} // they may give each element an id of its own
	}
	d.host.Life, d.host.Cancel = context.WithCancelCause(cfg.Context)
	d.timers = timers.NewService[*core.Slot[IN, OUT]](cfg.Clock, func() {
		d.timerDue.Store(true)
		d.host.WakeUp()
	})
	d.host.Clock = d.timers
	e := cfg.Core
	e.Timers, e.Host, e.Direct = d.timers, d.host, cfg.Direct != nil
	e.Jobs = &d.jobs
	d.core = core.New(e)
	d.addFeatures()
	d.Config.Core, d.Config.Features = core.Config[IN, OUT]{}, nil // the core has it, and lets go of the elements at the end
	d.current = &attachment[IN, OUT]{port: &flowPort[IN, OUT]{d}}
	d.attached.Store(d.current)
	d.unwatch = context.AfterFunc(d.host.Life, d.host.WakeUp)
	return d
}

// addFeatures adds the optional features to the core. The feature that looks at an element first is added first.
func (d *Driver[IN, OUT]) addFeatures() {
	g, cfg := d.core, &d.Config
	d.messages = core.AddMessages(g, cfg.Hooks.SourceBroke)
	if len(cfg.Observers) > 0 || len(cfg.Counters) > 0 {
		d.observing = core.AddObserving(g, d.messages, cfg.Observers, cfg.Counters, cfg.Hooks.ObserverBroke)
	}
	for _, add := range cfg.Features {
		add(g)
	}
	if cfg.Sink != nil {
		d.sink = core.AddHandOver(g, d.messages, cfg.Sink, cfg.Hooks.NotTaken)
	}
	if cfg.Batch != nil {
		d.batches = core.AddBatches(g, *cfg.Batch)
	}
}

// Start starts the loop.
func (d *Driver[IN, OUT]) Start() {
	if d.Coordinator != nil {
		d.joinCheckpoints()
	}
	go d.run()
}

// run is the goroutine of the operator. If user code ends it by runtime.Goexit, the run has failed
// (law A6), and the deferred function finishes it.
func (d *Driver[IN, OUT]) run() {
	var g guard.Guard
	defer g.Close(func(recovered any) {
		if recovered != nil { // a fault of weir: panics of user code are errors by now
			panic(recovered)
		}
		d.core.End(guard.Wrap("asyncop: the goroutine of the operator was ended", call.Panicked(nil))) // unless the core knows the code
		d.finish()
	})
	d.loop()
	g.Returned()
}

func (d *Driver[IN, OUT]) loop() {
	if !d.opened {
		d.opened = true
		if d.checks != nil {
			d.awaitStart()
		}
		d.open()
	}
	for d.step() {
		if d.handsOver() {
			return
		}
	}
	d.finish()
}

func (d *Driver[IN, OUT]) open() {
	if d.Open != nil && !d.failed() {
		d.core.Away(true)
		if err := call.OffLoop(func() error { return d.Open(d.host.Life) }); err != nil {
			d.core.End(guard.Wrap("asyncop: open", err))
		}
	}
	if d.Open != nil && d.failed() {
		d.closer = nil // what was not opened is not closed
	}
}

// step takes one turn and reports whether there is another.
func (d *Driver[IN, OUT]) step() bool {
	d.giveWay()
	d.Hooks.FlushLines(false)
	d.observe()
	d.checkSignals()
	switch {
	case d.failed():
	case d.suspended():
		d.host.RestSeat()
	default:
		d.sendWorkers()
		d.core.Step()
	}
	busy := d.acceptSome()
	if d.checks != nil {
		d.checks.holdSource(d.overflow() > d.Overflow)
	}
	d.publish()
	if d.failed() {
		return false
	}
	d.passBarrier()
	if !d.suspended() {
		busy = d.offerJobs() || busy
	}
	slots := d.core.State().Len
	busy = d.emitSome() || busy || d.core.State().Len < slots // elements that emit nothing have left
	if d.allLeft() {
		return false
	}
	switch {
	case busy:
		d.yielded = false
	case !d.yielded && d.core.State().Running > 0: // what calls are about to hand in then costs one turn, and no sleep
		d.yielded = true
		runtime.Gosched()
	default:
		d.park()
	}
	return true
}

// failed reports whether the run must end.
func (d *Driver[IN, OUT]) failed() bool { return d.core.State().Failure != nil }

// checkSignals looks at what other goroutines asked for.
func (d *Driver[IN, OUT]) checkSignals() {
	d.endWithRun()
	if d.timerDue.Load() {
		d.timerDue.Store(false) // the turn that follows looks at the timers
	}
	d.core.End(nil)
	if d.mustStop() {
		d.cancelUpstream(d.ErrStopped)
		d.endInput()
	}
	if a := d.attached.Load(); a.handed == nil { // otherwise handsOver switches, and this goroutine ends
		d.switchPort(a)
	}
}

// mustStop reports whether Stop has something to end. After the marker only barriers are taken, and the final one makes a
// clean end.
func (d *Driver[IN, OUT]) mustStop() bool {
	return d.stopping.Load() && !d.inOver && !d.marked
}

// park sleeps until something happens. What is posted after parked is set wakes it; what was before is seen by mayPark.
func (d *Driver[IN, OUT]) park() {
	d.host.Parked.Store(true)
	if !d.signalled() && !d.current.port.mayMove() && !d.mayObserve() && (d.suspended() || d.mayPark()) {
		d.publish()
		d.core.Away(true)
		d.current.port.sleep()
	}
	d.host.Parked.Store(false)
}

func (d *Driver[IN, OUT]) signalled() bool {
	return d.host.Cancelled() || d.mustStop() || d.gateHasOpened() || d.attached.Load() != d.current
}

// mayPark reports whether the loop may sleep as far as the core and the log are concerned, and sees to it that it is woken
// for the next timer. Called with parked set, so that nothing posted from now on is missed.
func (d *Driver[IN, OUT]) mayPark() bool {
	due := d.core.Next()
	if due == core.Now {
		return false
	}
	due = min(due, d.Hooks.LinesDue())
	return due == core.Never || d.timers.ScheduleAt(due)
}

// offerJobs offers the direct calls that were started to the workers that come free, and reports whether there were any. A batch is
// worth a switch: workers are sent for it at once.
func (d *Driver[IN, OUT]) offerJobs() bool {
	d.offered = len(d.jobs)
	some := d.offered > 0
	if some {
		d.workers.Offer(d.jobs...)
		clear(d.jobs)
		d.jobs = d.jobs[:0]
	}
	if d.batches != nil || d.current.handed != nil { // put may take its time
		d.sendWorkers()
	}
	return some
}

// giveWay lets workers whose calls return take what was offered, without a switch, if most of the calls that run are others.
func (d *Driver[IN, OUT]) giveWay() {
	if d.offered > 0 && d.core.State().Running > 2*d.offered {
		runtime.Gosched()
	}
}

// sendWorkers sends workers for those of the calls offered in the step before that are still there.
func (d *Driver[IN, OUT]) sendWorkers() {
	if d.offered > 0 {
		d.offered = 0
		d.workers.Send()
	}
}

// publish makes the statistics visible.
func (d *Driver[IN, OUT]) publish() {
	now := d.core.State()
	counts := now.Counts()
	counts.Emitted = d.emitted
	d.published.set(counts, now.Oldest)
	d.current.port.offer(now.Room)
}

// Out returns the channel of the results.
func (d *Driver[IN, OUT]) Out() <-chan any { return d.out }

// Done returns a channel that is closed when all is done.
func (d *Driver[IN, OUT]) Done() <-chan struct{} { return d.done }
