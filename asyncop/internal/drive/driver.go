package drive

import (
	"context"
	"io"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/timers"
)

// stepLimit bounds each kind of work in a step, so that each gets its turn.
const stepLimit = 128

// Driver is the loop of an operator.
type Driver[IN, OUT any] struct {
	Config[IN, OUT] // read-only

	core      *core.Machine[IN, OUT]               // owned by the loop
	messages  *core.Messages[IN, OUT]              // of the core
	observing *core.Observing[IN, OUT]             // of the core, or nil
	batches   *core.Batches[IN, OUT]               // of the core, or nil
	sink      *core.HandOver[IN, OUT]              // of the core, or nil
	timers    *timers.Service[*core.Slot[IN, OUT]] // owned by the loop
	host      *call.Host                           // shared with other goroutines
	workers   *call.Workers[IN, OUT]               // shared with other goroutines

	in       chan any                            // upstream sends and closes; the loop receives
	out      chan any                            // the loop sends and closes; downstream receives
	attached atomic.Pointer[attachment[IN, OUT]] // the port to use next

	// Owned by the loop.
	life          life
	input         inputState
	current       *attachment[IN, OUT]           // the port in use
	plain         bool                           // values of type IN are neither control elements nor messages
	letsIn        bool                           // the next element may take a slot: see prepareRead
	drainsRetries bool                           // elements are retried after the end of the input, too
	backlog       fifo.Queue[core.Item[IN, OUT]] // enters the core before new items
	checkpoints   *checkpointing[IN, OUT]        // or nil
	barriers      wiring.Barriers                // that have arrived
	final         bool                           // the barrier that arrived last is final
	runEnded      <-chan struct{}                // closed at the end of the coordinator's run; nil without a coordinator, or once the end was noticed
	upNext[OUT]
	emitted    int64               // results that were emitted so far
	leaving    fifo.Queue[leaving] // elements whose results are in a ring; only with observers
	jobs       []call.Job[IN, OUT] // not yet offered to the workers
	offered    int                 // jobs that were offered in the last step, before sendWorkers
	closer     io.Closer           // of the function, until it is closed; or nil
	yielded    bool                // the loop has yielded the processor since it had work
	gateClosed bool                // a gate was closed when the loop last asked
	unwatch    func() bool         // ends the watch on the operator's context
	upstream   sync.WaitGroup      // for the call of cancelUpstream

	timerDue     atomic.Bool   // the alarm has rung since the last step: see checkSignals and bodyPort.put
	stopping     atomic.Bool   // Stop was called
	purged       atomic.Bool   // EndPurged was called, and the loop has not acted on it
	inputErr     sharedError   // of Results; set before its ring ends
	err          sharedError   // set before ended is closed
	ended        chan struct{} // closed by the loop before out: err is final
	done         chan struct{} // closed by the loop at the end
	brokeOff     bool          // a range over the results ended early; set before done is closed
	delivery     delivery      // by Via or To
	late         lateElements
	gateWillWake atomic.Bool // a closed gate will wake the loop
	published    published   // for other goroutines
}

// upNext is the value to emit next. It is a barrier, or from the head of the queue: a
// control element or a result.
type upNext[OUT any] struct {
	loaded     bool                   // there is a value
	barrier    bool                   // the value is a barrier, which overtakes the queue
	next       any                    // the value for a channel; nil until flowPort.boxed has made it of a result
	results    []OUT                  // of the head, that were not sent
	numResults int                    // number of all results of the head
	message    call.Message           // of the head, or zero
	parts      []message.Message[OUT] // the message for each of results, if the head has several
}

// lateElements counts elements that arrived too late to be accepted.
type lateElements struct {
	count     atomic.Int64
	wired     atomic.Bool   // there is an upstream, which will close in
	discards  atomic.Bool   // elements that arrive from now on are discarded
	discarder sync.Once     // starts discard
	counted   chan struct{} // closed when count is final, because upstream has closed in
	once      sync.Once     // closes counted
}

// In returns the channel for upstream, which closes it. Call Wire before sending.
func (d *Driver[IN, OUT]) In() chan<- any { return d.in }

// Wire notes that there is an upstream.
func (d *Driver[IN, OUT]) Wire() {
	d.late.wired.Store(true)
	d.startDiscarding()
}

// New returns a driver.
func New[IN, OUT any](cfg Config[IN, OUT]) *Driver[IN, OUT] {
	d := &Driver[IN, OUT]{
		Config:        cfg,
		in:            make(chan any, cfg.Buffer),
		out:           make(chan any, cfg.Buffer),
		plain:         reflect.TypeFor[IN]().Kind() != reflect.Interface && !participant.IsControl(*new(IN)),
		drainsRetries: cfg.DrainRetries,
		closer:        cfg.Closer,
		ended:         make(chan struct{}),
		done:          make(chan struct{}),
	}
	d.late.counted = make(chan struct{})
	d.workers = call.NewWorkers(cfg.BlockingCall)
	d.host = &call.Host{
		User:     cfg.Context,
		Values:   call.ValuesOf(cfg.Context),
		RealTime: reflect.TypeOf(cfg.Clock) == reflect.TypeOf(clock.New()),
		Run:      func(task func()) { d.workers.Run(call.Job[IN, OUT]{Task: task}) },
		Sleeper:  call.NewSleeper(),
	}
	if b := cfg.Backend; b != nil {
		caller := gate.Caller{Longest: cfg.Core.LongestCall()}
		stamp, isInside := cfg.Context.Value(call.BackendKey{Backend: b}).(gate.Stamp)
		if isInside { // of the outer call
			caller.Lent, caller.Around = 1, stamp
		}
		d.host.Backend, d.host.Seat = b, b.Attach(&d.host.Sleeper, caller)
		d.host.Lease, _ = d.host.Seat.(gate.Leased)
	}
	d.host.OuterCall = call.ReporterIn(cfg.Context)
	if d.host.OuterCall != nil && len(cfg.Core.Observers) > 0 {
		// If the outer call is repeated, it makes new elements. Observers may give them
		// new ids, so servers do not recognise repeated requests.
		d.host.OuterCall = call.NotDeduplicated{Reporter: d.host.OuterCall}
	}
	d.host.Life, d.host.Cancel = context.WithCancelCause(cfg.Context)
	d.timers = timers.NewService[*core.Slot[IN, OUT]](cfg.Clock, func() {
		d.timerDue.Store(true)
		d.host.WakeUp()
	})
	d.host.Clock = d.timers
	e := cfg.Core
	e.User = cfg.User
	e.Timers, e.Host = d.timers, d.host
	e.Jobs, e.MakesJobs = &d.jobs, cfg.BlockingCall != nil
	d.core = core.New(e)
	d.messages, d.observing = d.core.Messages(), d.core.Observing()
	d.batches, d.sink = d.core.Batches(), d.core.HandOver()
	d.Config.Core = core.Config[IN, OUT]{} // the core has it
	d.current = &attachment[IN, OUT]{port: &flowPort[IN, OUT]{d}}
	d.attached.Store(d.current)
	d.unwatch = context.AfterFunc(d.host.Life, d.host.WakeUp)
	return d
}

// Start starts the loop.
func (d *Driver[IN, OUT]) Start() {
	if d.Coordinator != nil {
		d.joinCheckpoints()
	}
	go d.run()
}

// run is the goroutine of the operator. If runtime.Goexit ends it, the run has failed
// (law A6), and the deferred function finishes it.
func (d *Driver[IN, OUT]) run() {
	var g guard.Guard
	defer g.Close(func(recovered any) {
		if recovered != nil { // a bug in weir
			panic(recovered)
		}
		// The core ignores this error if it knows which function has called Goexit.
		d.core.End(guard.Wrap("asyncop: the goroutine of the operator was ended", call.Panicked(nil)))
		d.finish()
	})
	d.loop()
	g.Returned()
}

func (d *Driver[IN, OUT]) loop() {
	if d.life == opening {
		if d.checkpoints != nil {
			d.awaitStart()
		}
		d.open()
		d.life = running
	}
	for d.step() {
		if d.switchGoroutine() {
			return
		}
	}
	d.finish()
}

func (d *Driver[IN, OUT]) open() {
	if d.Opener == nil {
		return
	}
	if !d.failed() {
		d.core.NoteSlept()
		if err := call.OffLoop(func() error { return d.Opener.Open(d.host.Life) }); err != nil {
			d.core.End(guard.Wrap("asyncop: open", err))
		}
	}
	if d.failed() {
		d.closer = nil // not opened, so not closed
	}
}

// step runs a step of the loop, and reports whether there is another one.
//
// A blocking call that starts in this step is offered to workers that become free
// (offerJobs). If it still waits, the next step sends a worker for it (sendWorkers).
func (d *Driver[IN, OUT]) step() bool {
	d.giveWay()
	d.User.FlushLines(false)
	d.settleAndReport()
	d.checkSignals()
	switch {
	case d.failed():
	case d.suspended():
		d.host.DoneAsking()
	default:
		d.sendWorkers()
		d.core.Step()
	}
	busy := d.acceptSome()
	if d.checkpoints != nil {
		d.checkpoints.holdSource(d.overflowLen() > d.MaxOverflow)
	}
	d.publish()
	if d.failed() {
		return false
	}
	d.passBarrier()
	if !d.suspended() {
		hasJobs := d.offerJobs()
		busy = busy || hasJobs
	}
	slots := d.core.State().Len
	hasEmitted := d.emitSome()
	haveLeft := d.core.State().Len < slots // including elements without results
	busy = busy || hasEmitted || haveLeft
	if d.allLeft() {
		return false
	}
	if !busy && d.mustEndForBudget() {
		d.endWhenSpent()
	}
	switch {
	case busy:
		d.yielded = false
	case !d.yielded && d.core.State().Running > 0: // calls may be about to complete, and a step is cheaper than a sleep
		d.yielded = true
		runtime.Gosched()
	default:
		d.park()
	}
	return true
}

func (d *Driver[IN, OUT]) checkSignals() {
	d.endWithRun()
	if d.timerDue.Load() { // a load is cheaper than a store
		d.timerDue.Store(false) // this step fires the timers
	}
	d.core.EndIfCancelled()
	if d.purged.Load() {
		d.purged.Store(false) // first, so that the next purge is not missed
		if !d.failed() && !d.suspended() {
			d.core.EndPurged()
		}
	}
	if d.mustStop() {
		d.cancelUpstream(d.ErrStopped)
		d.endInput()
	}
	a := d.attached.Load()
	if a.moved == nil { // otherwise switchGoroutine switches the port
		d.switchPort(a)
	}
}

// EndPurged makes the loop end the elements whose messages were purged. It does not wait.
func (d *Driver[IN, OUT]) EndPurged() {
	d.purged.Store(true)
	d.host.WakeUp()
}

// Outliving returns the ids of messages whose calls outlive their attempts.
func (d *Driver[IN, OUT]) Outliving() []string { return d.host.Outliving() }

// mustStop reports whether Stop must end the input. After the marker of the end it need
// not: a final barrier follows, which is a clean end.
func (d *Driver[IN, OUT]) mustStop() bool {
	return d.stopping.Load() && d.life < ending && d.input == inputOpen
}

// park sleeps until there is work. A letter that was posted before Parked was set is
// noticed by setAlarm. A later letter wakes the loop.
func (d *Driver[IN, OUT]) park() {
	d.host.Parked.Store(true)
	hasWork := d.signalled() || d.current.port.lookForWork() || d.mayObserve()
	maySleep := !hasWork && (d.suspended() || d.setAlarm()) // while suspended, timers do not fire
	if maySleep {
		d.publish()
		d.core.NoteSlept()
		d.current.port.sleep()
	}
	d.host.Parked.Store(false)
}

func (d *Driver[IN, OUT]) signalled() bool {
	return d.host.Cancelled() || d.purged.Load() || d.mustStop() || d.gateHasOpened() || d.mayEndForBudget() || d.attached.Load() != d.current
}

// setAlarm arranges a wake-up for the next timer or log line. It returns false if one is
// due now. Parked must be set.
func (d *Driver[IN, OUT]) setAlarm() bool {
	due := d.core.Next()
	if due == core.Now {
		return false
	}
	due = min(due, d.User.LinesDue())
	return due == core.Never || d.timers.ScheduleAt(due)
}

// offerJobs offers the calls that have started to workers that become free, and reports
// whether there were any. Sending a worker costs a switch of goroutines. So workers are
// sent only in the next step, for calls that still wait.
//
// There are two exceptions. Batches get their workers at once. So do all calls if the
// body of a loop over results runs on this goroutine, because the body may take long.
func (d *Driver[IN, OUT]) offerJobs() bool {
	d.offered = len(d.jobs)
	hasJobs := d.offered > 0
	if hasJobs {
		d.workers.Offer(d.jobs...)
		clear(d.jobs)
		d.jobs = d.jobs[:0]
	}
	if d.batches != nil || d.current.moved != nil {
		d.sendWorkers()
	}
	return hasJobs
}

// giveWay yields the processor once if more calls run on workers than were offered. A
// worker whose call returns meanwhile takes an offered call.
func (d *Driver[IN, OUT]) giveWay() {
	if d.offered == 0 {
		return
	}
	numOnWorkers := d.core.State().Running - d.offered // offered calls have permits, so they count as running
	if numOnWorkers > d.offered {
		runtime.Gosched()
	}
}

// sendWorkers sends workers for offered calls that still wait.
func (d *Driver[IN, OUT]) sendWorkers() {
	if d.offered > 0 {
		d.offered = 0
		d.workers.Send()
	}
}

// publish makes the counters of the core, and its free slots, known to other goroutines.
func (d *Driver[IN, OUT]) publish() {
	now := d.core.State()
	counts := now.Counts()
	counts.Emitted = d.emitted
	counts.WaitingToLeave = int64(now.Done)
	d.published.set(counts, now.Oldest, now.Erred)
	d.current.port.announceSlots(d.core.FreeSlots())
}

// InputClosed returns a channel that is closed when the operator has ended and all
// discarded elements are counted. If there is an upstream, it has closed in.
func (d *Driver[IN, OUT]) InputClosed() <-chan struct{} { return d.late.counted }

// Out returns the channel of the results.
func (d *Driver[IN, OUT]) Out() <-chan any { return d.out }

// Done returns a channel that is closed when messages are settled and the function is
// closed.
func (d *Driver[IN, OUT]) Done() <-chan struct{} { return d.done }
