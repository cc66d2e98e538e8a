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
	Core   core.Config[IN, OUT] // the driver sets User, Timers, Host, Direct and Jobs
	User   User[IN, OUT]
	Direct call.Blocking[IN, OUT] // makes a call, on a worker; nil if User.Invoke does
	Opener Opener                 // opened before the first element; or nil
	Closer io.Closer              // closed after the last element, unless opening failed; or nil

	Context context.Context //nolint:containedctx // from the user
	Clock   clock.Clock
	Name    string
	Buffer  int // size of In and Out

	Reorders bool // results may leave in another order than their elements came

	Gates   []observe.Gate // asked before an element is accepted
	Backend gate.Backend   // the called backend, or nil

	CancelUpstream context.CancelCauseFunc // or nil
	Node           *wiring.Node            // the operator in the wiring of its pipeline
	DrainRetries   bool                    // retries always continue after the end of the input, as in Results

	Coordinator participant.Host // nil without checkpoints
	State       StateCodec[IN, OUT]
	Observer    observe.CheckpointedObserver // the observer with a state, or nil
	MaxOverflow int                          // items that may be read past the capacity to reach a barrier

	ErrStopped error // matched by the error of a run that Stop or a break has cut off
}

// User is the driver's view of the program around it. The loop calls the methods, unless
// they state otherwise.
type User[IN, OUT any] interface {
	core.User[IN, OUT]

	// AbandonedError returns the error of a run that ended with n elements in flight.
	// onRequest is true if the run was cancelled or stopped, or ended because an earlier
	// step was.
	AbandonedError(cause error, byElement, onRequest bool, n int) error
	// EndedOnRequest reports whether err, of the input, is the end of an earlier step
	// that was cancelled or stopped.
	EndedOnRequest(err error) bool
	// BudgetError returns the error of a run that has spent its budget.
	BudgetError(spent float64) error
	// TypeError returns the error for a value that is not an element.
	TypeError(got any) error

	// Log writes a line.
	Log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr)
	// LogAfterEnd writes a line after the end. Any goroutine may call it.
	LogAfterEnd(level slog.Level, msg string, attrs ...slog.Attr)
	// LogDeclined logs an element that the failure sink did not take at the end.
	LogDeclined(r core.Report[IN], err error)
	// FlushLines writes the lines that are due, or all lines.
	FlushLines(all bool)
	// LinesDue returns when the next line is due, or core.Never.
	LinesDue() time.Duration
}

// Opener is a function of the user that is opened before the first element.
type Opener interface {
	Open(ctx context.Context) error
}
