package drive

// life is the state of a driver:
//
//	opening ──▶ running ──▶ ending ──▶ finished
//	   │           │           │          ▲
//	   │           ├───────────┴▶ suspended
//	   ▼           ▼           ▼          │
//	   failed ────────────────────────────┘
//
// The states follow each other in this order. The loop owns the state.
//
// Failed is not stored: the core knows the failure first, because elements fail there.
// See [Driver.failed].
type life uint8

const (
	// opening: the driver waits for the start of the checkpoints, and opens the function.
	opening life = iota
	// running: the driver accepts elements, starts calls and emits results.
	running
	// ending: the input has ended, or Stop was called. The elements that were taken
	// complete and leave.
	ending
	// suspended: the elements in flight are in the final checkpoint, and will be called
	// again in the next run. While the barrier waits for downstream, no call starts, no
	// timer fires and completions have no effect.
	suspended
	// finished: the error of the run is final.
	finished
)

// inputState is the state of the input.
type inputState uint8

const (
	// inputOpen: elements and barriers may arrive.
	inputOpen inputState = iota
	// inputMarked: the marker of the end of the input has arrived. Only barriers follow.
	inputMarked
	// inputClosed: upstream has closed the input.
	inputClosed
)

// failed reports whether the run has failed and must end.
func (d *Driver[IN, OUT]) failed() bool { return d.core.State().Failure != nil }

// suspended reports whether the elements in flight are left to the final checkpoint.
func (d *Driver[IN, OUT]) suspended() bool { return d.host.Suspended.Load() }

// suspend leaves the elements in flight to the final checkpoint. Other goroutines see
// that in the host.
func (d *Driver[IN, OUT]) suspend() {
	d.life = suspended
	d.host.Suspended.Store(true)
	if d.sink != nil {
		d.sink.Cut()
	}
}
