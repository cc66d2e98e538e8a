package drive

import (
	"context"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/wiring"
)

// Config is what a driver is made of. It is read-only once the driver runs.
type Config[IN, OUT any] struct {
	Core   core.Config[IN, OUT]   // the driver sets Timers, Host and Direct
	Direct call.Blocking[IN, OUT] // makes a call, on a worker; nil: Invoke does

	Context context.Context //nolint:containedctx // the operator's, given by the user
	Clock   clock.Clock
	Name    string
	Buffer  int // places of In and Out

	Reorders bool // results leave in another order than their elements came

	Observers []observe.Observer
	Counters  []counting.Counter                                 // observers that only count
	Batch     *core.Batching[IN, OUT]                            // nil: a call is for one element
	Features  []func(g *core.Machine[IN, OUT])                   // more of the core
	Sink      func(ctx context.Context, r core.Report[IN]) error // takes elements that have failed, on a worker, one at a time; nil: there is none

	Gates []observe.Gate                  // asked before an element is accepted
	Open  func(ctx context.Context) error // before the first element; nil: there is none
	Close func() error                    // after the last one, if Open succeeded; nil: there is none

	Backend gate.Backend // that is called; nil: any

	CancelUpstream context.CancelCauseFunc // or nil
	Node           *wiring.Node            // the operator in the wiring of its pipeline
	DrainRetries   bool                    // the end of a flow's input lets retries go on, as that of Results' input does anyway

	Coordinator participant.Host // nil: no part in checkpoints
	State       StateCodec[IN, OUT]
	Observer    observe.CheckpointedObserver // one of the core's that has a state; nil: none has
	Overflow    int                          // elements read past the capacity for the sake of a barrier

	ErrStopped error // of what Stop, or a break out of Results, has cut off

	Hooks Hooks[IN]
}

// Hooks build what users see. The loop calls them.
type Hooks[IN any] struct {
	Abandoned     func(cause error, byElement bool, n int) error                              // the error of a run that ended with n elements in flight
	WrongType     func(got any) error                                                         // the error of what is no element
	NotTaken      func(r core.Report[IN], err error, wait time.Duration)                      // writes a line about an element that the sink has not taken, which is offered again; 0: never
	ObserverBroke func(err error)                                                             // writes a line about an observer
	Declined      func(r core.Report[IN], err error)                                          // writes a line about an element that the sink did not take at the end
	SourceBroke   func(err error)                                                             // writes a line about a panic of what settles a message; from any goroutine
	Log           func(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) // writes a line
	LogLate       func(level slog.Level, msg string, attrs ...slog.Attr)                      // writes a line after the end; from any goroutine
	FlushLines    func(all bool)                                                              // writes the lines that are due: how many were suppressed, statistics
	LinesDue      func() time.Duration                                                        // when some are, or core.Never
}
