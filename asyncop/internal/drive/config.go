package drive

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/wiring"
)

// Config has the settings of a driver. It is read-only after New.
type Config[IN, OUT any] struct {
	Core         core.Config[IN, OUT] // the driver sets User, Timers, Host, MakesJobs and Jobs
	User         User[IN, OUT]
	BlockingCall call.Blocking[IN, OUT] // makes a call on a worker, or nil: then User.Invoke starts all calls
	Opener       Opener                 // opened before the first element, or nil
	Closer       io.Closer              // closed after the last element if opening succeeded, or nil

	Context context.Context //nolint:containedctx // from the user
	Clock   clock.Clock
	Name    string
	Buffer  int // size of In and Out

	Reorders bool // results may leave out of order

	Gates   []observe.Gate // asked before an element is accepted
	Backend gate.Backend   // or nil

	CancelUpstream context.CancelCauseFunc // or nil
	Node           *wiring.Node            // of the operator in its pipeline
	DrainRetries   bool                    // see WithDrainRetries

	Coordinator participant.Host // nil without checkpoints
	State       StateCodec[IN, OUT]
	Observer    observe.CheckpointedObserver // or nil
	MaxOverflow int                          // items that may be read past the capacity to reach a barrier

	ErrStopped error // matches the error of a run that Stop or a break has cut off
}

// User is the driver's view of the program around it. The loop calls the methods, unless
// stated otherwise.
type User[IN, OUT any] interface {
	core.User[IN, OUT]

	// AbandonedError returns the error of a run that ended with n elements in flight.
	// byElement means that an element has failed the run, onRequest that this operator or
	// an earlier step was cancelled or stopped.
	AbandonedError(cause error, byElement, onRequest bool, n int) error
	// EndedOnRequest reports whether err means that an earlier step was cancelled or
	// stopped.
	EndedOnRequest(err error) bool
	// BudgetError returns the error of a run that has spent its budget.
	BudgetError(spent float64) error
	// TypeError returns the error for a value that is not an element.
	TypeError(got any) error

	// Log writes a line.
	Log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr)
	// LogAfterEnd writes a line after the end. Any goroutine may call it.
	LogAfterEnd(level slog.Level, msg string, attrs ...slog.Attr)
	// LogDeclined logs an element that the failure sink declined at the end.
	LogDeclined(r core.Report[IN], err error)
	// FlushLines writes the lines that are due, or all lines.
	FlushLines(all bool)
	// LinesDue returns when the next line is due, or core.Never.
	LinesDue() time.Duration
}

// Opener is a user function that is opened before the first element.
type Opener interface {
	Open(ctx context.Context) error
}
