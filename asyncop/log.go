package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/asyncop/internal/engine"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
)

// Logs are for people: at most logBurst lines of one kind in logPeriod.
const (
	logBurst  = 10
	logPeriod = time.Second
)

// lineLimit limits the lines of one kind. Owned by the loop.
type lineLimit struct {
	since      time.Duration
	lines      int
	suppressed int
	level      slog.Level // of the suppressed lines
	msg        string     // of the suppressed lines
}

// allow tells whether a line may be written, and how many were not since the last one.
func (l *lineLimit) allow(now time.Duration) (suppressed int, ok bool) {
	if l.lines == 0 || now-l.since >= logPeriod {
		l.since, l.lines = now, 0
	}
	if l.lines == logBurst {
		l.suppressed++
		return 0, false
	}
	l.lines++
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}

// logsRetries tells whether lines about retries are written at all, so that they need not be put together for every retry.
// The handler is asked off the loop, like everything of the user's that is called for logs, and not for every retry.
func (c *core[IN, OUT]) logsRetries() bool {
	if g := &c.retryLines; !g.asked || c.engine.Present()-g.since >= logPeriod/10 {
		*g = levelGate{asked: true, since: c.engine.Present()}
		_ = c.offLoop(func() error { g.open = c.logger.Enabled(c.ctx, slog.LevelDebug); return nil })
	}
	return c.retryLines.open
}

// levelGate is what a handler has said about a level.
type levelGate struct {
	asked, open bool
	since       time.Duration
}

// log writes a line about an element, if the limit allows it and the level is enabled.
func (c *core[IN, OUT]) log(limit *lineLimit, level slog.Level, msg string, in IN, attrs ...slog.Attr) {
	suppressed, ok := limit.allow(c.engine.Present())
	if !ok {
		limit.level, limit.msg = level, msg
		c.suppressed = true
		return
	}
	attrs = append(attrs, slog.String("element", c.labelOf(in)))
	if suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", suppressed))
	}
	c.logAttrs(level, msg, attrs...)
}

// logGivenUp tells of an element that failed, and why there was no other attempt.
func (c *core[IN, OUT]) logGivenUp(r engine.Report[IN], how engine.Ending) {
	attrs := []slog.Attr{slog.Int("attempts", r.Attempts), slog.Any("error", r.Err)}
	if r.Verdict != decision.Accepted {
		attrs = append(attrs, slog.String("verdict", r.Verdict.String()))
	}
	if !r.Reason.IsZero() {
		attrs = append(attrs, slog.String("reason", r.Reason.String()))
	}
	msg := "asyncop: element given up"
	if how == engine.Dropped {
		msg = "asyncop: element dropped"
	}
	c.log(&c.giveUpLog, slog.LevelWarn, msg, r.Element, attrs...)
}

// logRetry tells of a retry that will be made.
func (c *core[IN, OUT]) logRetry(r engine.Report[IN], d decision.Decision) {
	c.log(&c.retryLog, slog.LevelDebug, "asyncop: retry", r.Element, retryAttrs(r.Attempts, d)...)
}

// logNoRetry tells that there was a reason for a retry, and no retry.
func (c *core[IN, OUT]) logNoRetry(r engine.Report[IN], d decision.Decision) {
	var attrs []slog.Attr
	if d.Verdict == decision.Retried {
		attrs = append(retryAttrs(r.Attempts, d), slog.String("verdict", "not before the deadline"))
	} else {
		attrs = []slog.Attr{
			slog.String("verdict", d.Verdict.String()), slog.String("reason", d.Reason.String()),
			slog.Int("attempts", r.Attempts), slog.Any("error", d.Err),
		}
	}
	c.log(&c.refuseLog, slog.LevelDebug, "asyncop: no retry", r.Element, attrs...)
}

func retryAttrs(attempts int, d decision.Decision) []slog.Attr {
	return []slog.Attr{
		slog.Int("attempts", attempts), slog.Duration("delay", max(d.Delay, d.Demanded)),
		slog.String("reason", d.Reason.String()), slog.Any("error", d.Err),
	}
}

// logEnd writes, once, that the operator has failed, whoever waits for it: the caller of Wait and the loop over Results may
// not look. That it was cancelled was wanted, and the end of a loop by its own body says nothing new.
func (c *core[IN, OUT]) logEnd(err error, cut bool) {
	_, failure := c.engine.Failure()
	switch {
	case !cut:
		c.logAttrs(slog.LevelError, "asyncop: operator failed", slog.Any("error", err))
	case failure != ErrStopped: //nolint:errorlint // what a break is, itself
		c.logAttrs(slog.LevelInfo, "asyncop: operator cancelled", slog.Any("error", err))
	}
}

// warnOfCutRetries says at the end that retries were cut: results that are not there yet would be missing without a word.
func (c *core[IN, OUT]) warnOfCutRetries() {
	counts, _ := c.engine.Counts()
	if n := counts.CutByEndOfInput; n > 0 {
		c.logAttrs(slog.LevelWarn, "asyncop: the input ended while elements still asked for a retry: they got none; "+
			"WithDrainRetries lets retries go on", slog.Int64("elements", n))
	}
}

// logSuppressed writes how many lines of each kind were suppressed, unless a line of the kind has said so: when the period
// is over, or all at the end of the operator.
func (c *core[IN, OUT]) logSuppressed(all bool) {
	if !c.suppressed {
		return
	}
	c.suppressed = false
	for _, l := range c.lineLimits() {
		switch {
		case l.suppressed == 0:
		case !all && c.engine.Present() < l.since+logPeriod:
			c.suppressed = true
		default:
			n := l.suppressed
			l.suppressed = 0
			c.logAttrs(l.level, l.msg+": lines suppressed", slog.Int("suppressed", n))
		}
	}
}

// suppressedDue returns when logSuppressed has something to write.
func (c *core[IN, OUT]) suppressedDue() (due time.Duration, ok bool) {
	if !c.suppressed {
		return 0, false
	}
	for _, l := range c.lineLimits() {
		if d := l.since + logPeriod; l.suppressed > 0 && (!ok || d < due) {
			due, ok = d, true
		}
	}
	return due, ok
}

func (c *core[IN, OUT]) lineLimits() [4]*lineLimit {
	return [...]*lineLimit{&c.retryLog, &c.refuseLog, &c.giveUpLog, &c.slowLog}
}

// logAttrs calls the user's handler off the loop, since it may do anything (law A6). A line about a panic has its stack.
func (c *core[IN, OUT]) logAttrs(level slog.Level, msg string, attrs ...slog.Attr) {
	if c.name != "" {
		attrs = append(attrs, slog.String("operator", c.name))
	}
	_ = c.offLoop(func() error {
		attrs = withStack(attrs)
		c.logger.LogAttrs(context.WithoutCancel(c.ctx), level, msg, attrs...)
		return nil
	})
}

// withStack gives a line about a panic an attribute with the stack. Handlers that format errors with %+v would write it a
// second time, in the midst of the line.
func withStack(attrs []slog.Attr) []slog.Attr {
	for i, a := range attrs {
		err, ok := a.Value.Any().(error)
		if !ok {
			continue
		}
		if stack := stackOf(err); stack != nil {
			attrs[i] = slog.Any(a.Key, plainError{err})
			return append(attrs, slog.String("stack", string(stack)))
		}
	}
	return attrs
}

// plainError is an error without its own format.
type plainError struct{ error }

func (e plainError) Unwrap() error { return e.error }

// labelOf names an element for people.
func (c *core[IN, OUT]) labelOf(in IN) string {
	label := c.label
	if label == nil {
		label = defaultLabel
	}
	var text string
	if err := c.offLoop(func() error { text = label(in); return nil }); err != nil { // a number may have a String method
		return fmt.Sprintf("(label: %v)", err)
	}
	return text
}

const maxLabel = 64 // bytes of a default label

func defaultLabel(in any) string {
	switch v := reflect.ValueOf(in); v.Kind() {
	case reflect.Invalid:
		return "<nil>"
	case reflect.String:
		s := v.String()
		if len(s) <= maxLabel {
			return fmt.Sprintf("%q", s)
		}
		end := maxLabel
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		return fmt.Sprintf("%q…", s[:end])
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return fmt.Sprint(v)
	default:
		return "of type " + v.Type().String()
	}
}

// offLoop is offLoop for calls that the loop makes: time passes.
func (c *core[IN, OUT]) offLoop(f func() error) error {
	c.engine.Slept()
	return offLoop(f)
}

// offLoop runs user code that may block for a moment on a goroutine of its own and waits for it, so that neither a panic
// nor runtime.Goexit reaches the caller (law A6).
func offLoop(f func() error) error {
	return guard.Call(f, func(recovered any) error { return newPanicError(recovered) })
}
