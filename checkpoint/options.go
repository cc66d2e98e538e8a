package checkpoint

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

const defaultTimeout = 10 * time.Minute

// Option changes a setting of a [Coordinator]. Options panic for an invalid or nil
// argument.
type Option func(*Coordinator)

// WithInterval triggers a checkpoint after each interval, counted from the end of the
// previous checkpoint. By default, and with 0, checkpoints are taken on demand only. It
// panics if d < 0.
func WithInterval(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("checkpoint: WithInterval: negative interval: %v", d))
	}
	return func(c *Coordinator) { c.interval = d }
}

// WithTimeout bounds each step of a checkpoint; the default is 10 minutes. The steps are:
// from the trigger until all have reported; storing it ([Store.Save]); publishing it at
// each sink ([Output.Commit]). It also bounds loading the stored checkpoint, and
// [Output.Restore] or FreshStart of each output. After d the context of the step ends. A
// step that has not returned five seconds later counts as failed. A failing Save of a
// final checkpoint, and a failing Commit, are repeated until d has passed.
//
// The draining before a [Drain] checkpoint is not bounded; a warning names the
// participants that have not finished, each time d has passed.
//
// Another warning names the participants that have not reported a checkpoint after ten
// seconds, and each time the wait has doubled. During draining it names only participants
// that have never reported. WithTimeout panics if d <= 0.
func WithTimeout(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("checkpoint: WithTimeout: must be positive, got %v", d))
	}
	return func(c *Coordinator) { c.timeout = d }
}

// WithTolerableFailures ends the run with an error when more than n checkpoints in a row
// have failed ([Stats.Failed]). By default any number is tolerated, and each failure is
// logged: weir does not restart a pipeline that has ended. (Flink's
// tolerableCheckpointFailureNumber defaults to 0, since Flink restarts its jobs.) It
// panics if n < 0.
func WithTolerableFailures(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("checkpoint: WithTolerableFailures: negative number: %d", n))
	}
	return func(c *Coordinator) { c.tolerate = n }
}

// WithNewParticipants names operators and sinks that were added to the pipeline since the
// checkpoint that it resumes from. They begin as in a fresh start. Start fails for other
// participants without a state in the checkpoint, since they may have been renamed. A
// name that has a state gets it, so the option may stay.
//
// A source cannot be added: its input would begin anew. A participant with a state cannot
// be removed, since its elements would be lost. It panics if a name is empty.
func WithNewParticipants(names ...string) Option {
	for i, name := range names {
		if name == "" {
			panic(fmt.Sprintf("checkpoint: WithNewParticipants: name %d is empty", i))
		}
	}
	return func(c *Coordinator) { c.added = append(c.added, names...) }
}

// WithClock sets the clock of intervals, timeouts, retries and [Stats]; the default is
// the real clock.
func WithClock(clk clock.Clock) Option {
	guard.RefuseNil("checkpoint: WithClock", "clock", clk)
	return func(c *Coordinator) { c.clock = clk }
}

// WithLogger sets the logger of the coordinator, and of a store and outputs with a method
// LogTo; the default is slog.Default(). Aborted checkpoints are logged as warnings,
// complete checkpoints at debug level.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("checkpoint: WithLogger: nil logger")
	}
	return func(c *Coordinator) { c.logger = l }
}
