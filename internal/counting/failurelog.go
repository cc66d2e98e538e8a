package counting

import (
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// A FailureLog writes one line per minute for similar failures, in about failureGroups
// groups.
const (
	failurePeriod = time.Minute
	failureGroups = 10
)

// FailureLog logs the failures of an action that is repeated until it works, at warn. Of
// similar failures the first has a line, and the others have one line per minute, with
// their number. That line is written by the next Add, FlushDue or Flush after the minute.
// It is not safe for concurrent use.
type FailureLog struct {
	logger *slog.Logger
	clock  clock.Clock
	begun  time.Time
	msg    string
	args   []any
	lines  *Lines[string]
}

// NewFailureLog returns a FailureLog whose lines have a message and, besides the error,
// the attributes args, as in [slog.Logger.Warn].
func NewFailureLog(l *slog.Logger, c clock.Clock, msg string, args ...any) *FailureLog {
	return &FailureLog{
		logger: l, clock: c, begun: c.Now(), msg: msg, args: args,
		lines: NewLines[string](failurePeriod, failureGroups),
	}
}

// Add logs or counts a failure. First it writes the lines that are due, so that groups of
// failures that have ended make room for others. about are attributes of this failure
// alone, as in [slog.Logger.Warn]; a line about several failures has the last ones.
func (f *FailureLog) Add(err error, about ...any) {
	now := f.clock.Now().Sub(f.begun)
	f.lines.Flush(now, false)
	key := Alike(guard.Text(err))
	if !f.lines.HasRoom(key, now) {
		key = "" // further failures share a group
	}
	if f.lines.Begin(key, now, func(more int) { f.write(err, append(about, "failures", more)) }) {
		f.write(err, about)
	}
}

func (f *FailureLog) write(err error, about []any) {
	args := append([]any{}, f.args...)
	args = append(args, "error", err)
	f.logger.Warn(f.msg, append(args, about...)...)
}

// Due returns how long it takes until a line is due. ok is false if each failure has been
// in a line.
func (f *FailureLog) Due() (wait time.Duration, ok bool) {
	at, ok := f.lines.Due()
	return max(0, at-f.clock.Now().Sub(f.begun)), ok
}

// FlushDue writes the lines about failures that were counted and are due. Call it after
// each attempt, so that a line is also written if the action works again.
func (f *FailureLog) FlushDue() { f.lines.Flush(f.clock.Now().Sub(f.begun), false) }

// Flush writes all lines about failures that were counted. Call it at the end.
func (f *FailureLog) Flush() { f.lines.Flush(f.clock.Now().Sub(f.begun), true) }
