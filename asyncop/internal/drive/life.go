package drive

// life is the state of a driver:
//
//	opening ──▶ running ──▶ ending ──▶ finished
//	   │           │           │          ▲
//	   │           ├───────────┴▶ suspended
//	   ▼           ▼           ▼          │
//	   failed ────────────────────────────┘
//
// From ending on, the input is not read.
//
// The loop owns the state. Failed is not a value of life: the core has the failure.
type life uint8

const (
	// opening: awaits the start of the checkpoints, and opens the function.
	opening life = iota
	// running: accepts elements, starts calls and emits results.
	running
	// ending: the input has ended, a Drain has arrived, or Stop was called. Accepted
	// elements complete and leave.
	ending
	// suspended: the final checkpoint has the elements in flight. While the barrier waits
	// for downstream, calls do not start, timers do not fire and completions have no
	// effect.
	suspended
	// finished: the error of the run is final.
	finished
)

type inputState uint8

const (
	// inputOpen: elements and barriers may arrive.
	inputOpen inputState = iota
	// inputMarked: the marker of the end of the input has arrived. Only barriers follow.
	inputMarked
	// inputClosed: upstream has closed the input.
	inputClosed
)

func (d *Driver[IN, OUT]) failed() bool { return d.core.State().Failure != nil }

// suspended reports whether elements are left to the final checkpoint.
func (d *Driver[IN, OUT]) suspended() bool { return d.host.Suspended.Load() }

// suspend leaves the elements in flight to the final checkpoint.
func (d *Driver[IN, OUT]) suspend() {
	d.life = suspended
	d.host.Suspended.Store(true)
	if d.sink != nil {
		d.sink.Cut()
	}
}
