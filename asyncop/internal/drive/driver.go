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
	drainsRetries bool                           // after the end of the input
	backlog       fifo.Queue[core.Item[IN, OUT]] // enters the core before new items
	checkpoints   *checkpointing[IN, OUT]        // or nil
	barriers      wiring.Barriers                // that have arrived
	final         bool                           // the last barrier is final
	runEnded      <-chan struct{}                // closed at the end of the coordinator's run; nil without one, or once it was noticed
	upNext[OUT]
	emitted    int64               // results
	leaving    fifo.Queue[leaving] // observed, with results in a ring
	jobs       []call.Job[IN, OUT] // not yet offered to the workers
	offered    int                 // jobs offered in the last step
	closer     io.Closer           // if it must still be closed
	yielded    bool                // since it had work
	gateClosed bool                // as of the last look
	unwatch    func() bool         // ends the watch on the operator's context
	upstream   sync.WaitGroup      // for the call of cancelUpstream

	timerDue     atomic.Bool   // the alarm has rung: bodyPort ends its step after at most one more result, and the next step fires the timers
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

// upNext is the value to emit next.
type upNext[OUT any] struct {
	loaded     bool
	barrier    bool                   // next is a barrier, which overtakes the queue; otherwise it is from the head
	next       any                    // as out carries it; nil for an unconverted result
	results    []OUT                  // remaining, of the head
	numResults int                    // of the head
	message    call.Message           // of the head, or zero
	parts      []message.Message[OUT] // remaining, if the head has several results
}

// lateElements counts elements that arrived too late to be accepted.
type lateElements struct {
	count     atomic.Int64
	wired     atomic.Bool   // upstream may send, and will close in
	discards  atomic.Bool   // elements that arrive
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
		d.core.End(guard.Wrap("asyncop: the goroutine of the operator was ended", call.Panicked(nil))) // ignored if the core knows which function called Goexit
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

// step runs a step of the loop, and reports whether there is another. A blocking call
// gets its worker in two steps: see offerJobs.
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
	if !busy && !d.loaded && d.core.MustEndForBudget() {
		d.endWhenSpent()
	}
	switch {
	case busy:
		d.yielded = false
	case !d.yielded && d.core.State().Running > 0: // for calls about to complete, one more step is cheaper than a sleep
		d.yielded = true
		runtime.Gosched()
	default:
		d.park()
	}
	return true
}

func (d *Driver[IN, OUT]) checkSignals() {
	d.endWithRun()
	if d.timerDue.Load() { // cheaper than a store
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
	if a.moved == nil { // otherwise switchGoroutine does, and this goroutine ends
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

// mustStop reports whether Stop must end the input. After the marker it need not, because
// the final barrier is a clean end.
func (d *Driver[IN, OUT]) mustStop() bool {
	return d.stopping.Load() && d.life < ending && d.input == inputOpen
}

// park sleeps until there is work. Letters posted after Parked is set wake it; setAlarm
// notices earlier ones.
func (d *Driver[IN, OUT]) park() {
	d.host.Parked.Store(true)
	if !d.signalled() && !d.current.port.lookForWork() && !d.mayObserve() && (d.suspended() || d.setAlarm()) {
		d.publish()
		d.core.NoteSlept()
		d.current.port.sleep()
	}
	d.host.Parked.Store(false)
}

func (d *Driver[IN, OUT]) signalled() bool {
	return d.host.Cancelled() || d.purged.Load() || d.mustStop() || d.gateHasOpened() || d.sumIsStored() || d.attached.Load() != d.current
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

// offerJobs offers the started calls to workers that become free, and reports whether
// there were any. To send a worker costs a switch of goroutines, so sendWorkers does it
// in the next step, for calls that still wait. Workers are sent at once for a batch, and
// if a loop body, which may take long, runs on this goroutine.
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

// giveWay yields the processor once if most running calls are on workers: offered calls
// count as running, too. Workers whose calls return meanwhile take the offered jobs.
func (d *Driver[IN, OUT]) giveWay() {
	if d.offered > 0 && d.core.State().Running > 2*d.offered {
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

func (d *Driver[IN, OUT]) publish() {
	now := d.core.State()
	counts := now.Counts()
	counts.Emitted = d.emitted
	counts.WaitingToLeave = int64(now.Done)
	d.published.set(counts, now.Oldest, now.Erred)
	d.current.port.announceSlots(d.core.FreeSlots())
}

// InputClosed returns a channel that is closed after the end of the operator, when
// upstream, if any, has closed in and all discarded elements are counted.
func (d *Driver[IN, OUT]) InputClosed() <-chan struct{} { return d.late.counted }

// Out returns the channel of the results.
func (d *Driver[IN, OUT]) Out() <-chan any { return d.out }

// Done returns a channel that is closed when messages are settled and the function is
// closed.
func (d *Driver[IN, OUT]) Done() <-chan struct{} { return d.done }
