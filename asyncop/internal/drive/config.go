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

// Config has the settings and parts of a driver. It is read-only after New.
type Config[IN, OUT any] struct {
	Core   core.Config[IN, OUT]   // the driver sets Timers, Host and Direct
	Direct call.Blocking[IN, OUT] // makes a call, on a worker; nil if Invoke does

	Context context.Context //nolint:containedctx // from the user
	Clock   clock.Clock
	Name    string
	Buffer  int // size of In and Out

	Reorders bool // results may leave in another order than their elements came

	Observers []observe.Observer
	Counters  []counting.Counter                                 // observers that only count
	Batch     *core.Batching[IN, OUT]                            // nil if each call is for one element
	Features  []func(g *core.Machine[IN, OUT])                   // other optional parts of the core
	Sink      func(ctx context.Context, r core.Report[IN]) error // takes failed elements, on a worker, one at a time; or nil

	Gates []observe.Gate                  // asked before an element is accepted
	Open  func(ctx context.Context) error // called before the first element; or nil
	Close func() error                    // called after the last element, if Open succeeded; or nil

	Backend gate.Backend // the called backend, or nil

	CancelUpstream context.CancelCauseFunc // or nil
	Node           *wiring.Node            // the operator in the wiring of its pipeline
	DrainRetries   bool                    // retries always continue after the end of the input, as in Results

	Coordinator participant.Host // nil without checkpoints
	State       StateCodec[IN, OUT]
	Observer    observe.CheckpointedObserver // the observer with a state, or nil
	Overflow    int                          // items that may be read past the capacity to reach a barrier

	ErrStopped error // the error of elements that Stop or a break has cut off

	Hooks Hooks[IN]
}

// Hooks build errors and log lines. The loop calls them, unless they state otherwise.
type Hooks[IN any] struct {
	Abandoned     func(cause error, byElement bool, n int) error                              // returns the error of a run that ended with n elements in flight
	WrongType     func(got any) error                                                         // returns the error for a value that is not an element
	NotTaken      func(r core.Report[IN], err error, wait time.Duration)                      // logs an element that the sink has not taken; wait is the time until the next offer, or 0 if there is none
	ObserverBroke func(err error)                                                             // logs a panic of an observer
	Declined      func(r core.Report[IN], err error)                                          // logs an element that the sink did not take at the end
	SourceBroke   func(err error)                                                             // logs a panic of a source; from any goroutine
	Log           func(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) // writes a line
	LogLate       func(level slog.Level, msg string, attrs ...slog.Attr)                      // writes a line after the end; from any goroutine
	FlushLines    func(all bool)                                                              // writes the lines that are due, or all
	LinesDue      func() time.Duration                                                        // returns when the next line is due, or core.Never
}
