package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Logs are for people: at most logBurst lines of one kind in logPeriod.
const (
	logBurst  = 10
	logPeriod = time.Second
)

// lineLimit limits the lines of one kind, which have the same level and message. Owned by the loop.
type lineLimit struct {
	level slog.Level
	msg   string
	until time.Duration // the end of the period, by the operator's clock
	lines int           // in the period, those that are suppressed included
}

// mayLog reports whether another line of its kind may be written now. Only lines of levels that are enabled count.
func (s *userSide[IN, OUT]) mayLog(level slog.Level, msg string) bool {
	i := slices.IndexFunc(s.limits, func(l *lineLimit) bool { return l.level == level && l.msg == msg })
	if i < 0 {
		i = len(s.limits)
		s.limits = append(s.limits, &lineLimit{level: level, msg: msg})
	}
	l, now := s.limits[i], s.now()
	if now >= l.until {
		s.endPeriod(l)
		l.until = now + logPeriod
	}
	l.lines++
	return l.lines <= logBurst
}

// endPeriod says how many lines of a period were suppressed.
func (s *userSide[IN, OUT]) endPeriod(l *lineLimit) {
	n := l.lines - logBurst
	if l.lines = 0; n > 0 {
		s.logAttrs(s.ctx, l.level, l.msg+": lines suppressed", slog.Int("suppressed", n))
	}
}

// logSuppressed ends the periods that are over; or all, at the end of the operator.
func (s *userSide[IN, OUT]) logSuppressed(all bool) {
	for _, l := range s.limits {
		if l.lines > logBurst && (all || s.now() >= l.until) {
			s.endPeriod(l)
		}
	}
}

// suppressedDue returns when logSuppressed has something to write.
func (s *userSide[IN, OUT]) suppressedDue() (due time.Duration, ok bool) {
	for _, l := range s.limits {
		if l.lines > logBurst && (!ok || l.until < due) {
			due, ok = l.until, true
		}
	}
	return due, ok
}

// logsDebug reports whether lines for those who look closely are written at all. The handler is asked off the loop, like everything of
// the user's that is called for logs.
func (s *userSide[IN, OUT]) logsDebug() (logs bool) {
	_ = s.offLoop(func() error { logs = s.logger.Enabled(s.ctx, slog.LevelDebug); return nil })
	return logs
}

// now returns when the core last looked at the clock.
func (s *userSide[IN, OUT]) now() time.Duration { return s.driver.Core().State().Now }

// log writes a line about an element, unless there are too many of its kind. Handlers find in ctx what observers know of the
// element, such as the id of its trace.
func (s *userSide[IN, OUT]) log(ctx context.Context, level slog.Level, msg string, in IN, attrs ...slog.Attr) {
	if s.mayLog(level, msg) {
		attrs = append(attrs, slog.String("element", s.logLabelOf(in)))
		s.logAttrs(ctx, level, msg, append(attrs, s.messageAttrs(ctx)...)...)
	}
}

// logGivenUp reports an element that failed, and the reason why there was no other attempt; one line stands for those that are alike. What
// the failure sink makes of it, such as a dead letter, is its own to log.
func (s *userSide[IN, OUT]) logGivenUp(r core.Report[IN], how observe.EndKind) {
	msg := "asyncop: element handed over to the failure sink"
	if how == observe.Dropped {
		msg = "asyncop: element dropped"
	}
	attrs := func() []slog.Attr {
		attrs := []slog.Attr{slog.Int("attempts", r.Attempts), slog.Any("error", r.Err)}
		if r.Verdict != decision.Final {
			attrs = append(attrs, slog.String("verdict", r.Verdict.String()))
		}
		if !r.Reason.IsZero() {
			attrs = append(attrs, slog.String("reason", r.Reason.String()))
		}
		return attrs
	}
	if s.group(r, func(more int) {
		s.log(r.Context, slog.LevelWarn, msg+", and others for the same reason", r.Element, append(attrs(), slog.Int("elements", more))...)
	}) {
		s.log(r.Context, slog.LevelWarn, msg, r.Element, attrs()...)
	}
}

// logNotTaken reports an element that the failure sink has not taken, and when it is offered again; 0: never.
func (s *userSide[IN, OUT]) logNotTaken(r core.Report[IN], err error, wait time.Duration) {
	if wait == 0 {
		s.log(r.Context, slog.LevelWarn, "asyncop: the failure sink can never take an element: it is rejected", r.Element, slog.Any("error", err))
		return
	}
	s.log(r.Context, slog.LevelWarn, "asyncop: the failure sink did not take an element", r.Element,
		slog.Any("error", err), slog.Duration("again", wait))
}

// logDeclined reports an element that the failure sink has not taken at the end. That it takes none that was cut off may be as
// it should be.
func (s *userSide[IN, OUT]) logDeclined(r core.Report[IN], err error) {
	level := slog.LevelError
	if !r.Failed {
		if level = slog.LevelDebug; !s.logsDebug() {
			return
		}
	}
	s.log(r.Context, level, "asyncop: the failure sink did not take an element at the end", r.Element, slog.Any("error", err))
}

// logSourceBroke reports a panic of a message's source, while the message was being settled. Called from any goroutine.
func (s *userSide[IN, OUT]) logSourceBroke(err error) {
	_ = offLoop(func() error {
		s.logger.LogAttrs(context.WithoutCancel(s.ctx), slog.LevelError, "asyncop: the source of a message panicked",
			withStack([]slog.Attr{slog.Any("error", err)})...)
		return nil
	})
}

// logRetry reports a retry that will be made.
func (s *userSide[IN, OUT]) logRetry(r core.Report[IN], d decision.Decision) {
	s.log(r.Context, slog.LevelDebug, "asyncop: retry", r.Element, retryAttrs(r.Attempts, d)...)
}

// logNoRetry reports that there was a reason for a retry, and no retry.
func (s *userSide[IN, OUT]) logNoRetry(r core.Report[IN], d decision.Decision) {
	var attrs []slog.Attr
	if d.Verdict == decision.Retried {
		attrs = append(retryAttrs(r.Attempts, d), slog.String("verdict", "not before the deadline"))
	} else {
		attrs = []slog.Attr{
			slog.String("verdict", d.Verdict.String()), slog.String("reason", d.Reason.String()),
			slog.Int("attempts", r.Attempts), slog.Any("error", d.Err),
		}
	}
	s.log(r.Context, slog.LevelDebug, "asyncop: no retry", r.Element, attrs...)
}

func retryAttrs(attempts int, d decision.Decision) []slog.Attr {
	return []slog.Attr{
		slog.Int("attempts", attempts), slog.Duration("delay", max(d.Delay, d.Demanded)),
		slog.String("reason", d.Reason.String()), slog.Any("error", d.Err),
	}
}

// flushLines writes the lines that are due.
func (s *userSide[IN, OUT]) flushLines(all bool) {
	s.logGroups(all)
	s.logSuppressed(all)
	s.logFailing()
}

// linesDue returns when flushLines has something to write.
func (s *userSide[IN, OUT]) linesDue() (due time.Duration, ok bool) {
	for _, line := range []func() (time.Duration, bool){s.suppressedDue, s.failingDue, s.groupsDue} {
		if d, some := line(); some && (!ok || d < due) {
			due, ok = d, true
		}
	}
	return due, ok
}

// logAttrs calls the user's handler off the loop, since it may do anything (law A6). A line about a panic has its stack.
// Of ctx only the values count.
func (s *userSide[IN, OUT]) logAttrs(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	if s.name != "" {
		attrs = append(attrs, slog.String("operator", s.name))
	}
	_ = s.offLoop(func() error {
		attrs = withStack(attrs)
		s.logger.LogAttrs(context.WithoutCancel(ctx), level, msg, attrs...)
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

// messageAttrs name the message that an element is.
func (s *userSide[IN, OUT]) messageAttrs(ctx context.Context) (attrs []slog.Attr) {
	_ = s.offLoop(func() error { // the context is one of the observers'
		if meta, ok := message.MetaFromContext(ctx); ok && meta.ID != "" {
			attrs = []slog.Attr{slog.String("id", meta.ID), slog.Int("visit", meta.Visit)}
		}
		return nil
	})
	return attrs
}

// labelOf names an element for people.
func (s *userSide[IN, OUT]) labelOf(in IN) string {
	var text string
	if err := s.offLoop(func() error { text = labelOf(in); return nil }); err != nil { // it may have methods
		return fmt.Sprintf("(label: %v)", err)
	}
	return text
}

// logLabelOf is labelOf for an attribute of a log, which the handler quotes if need be.
func (s *userSide[IN, OUT]) logLabelOf(in IN) string {
	label := s.labelOf(in)
	if _, ok := any(in).(slog.LogValuer); ok {
		return label
	}
	quoted, err := strconv.QuotedPrefix(label)
	if err != nil {
		return label // no string
	}
	text, _ := strconv.Unquote(quoted) // it is one
	return text + label[len(quoted):]
}

// labelOf names an element by its LogValue, if it has one, else by defaultLabel.
func labelOf(in any) string {
	if v, ok := in.(slog.LogValuer); ok {
		return v.LogValue().Resolve().String()
	}
	return defaultLabel(in)
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
func (s *userSide[IN, OUT]) offLoop(f func() error) error {
	s.driver.Core().Away(true)
	return offLoop(f)
}

// offLoop runs user code that may block for a moment on a goroutine of its own and waits for it, so that neither a panic
// nor runtime.Goexit reaches the caller (law A6).
func offLoop(f func() error) error {
	return guard.Call(f, func(recovered any) error { return newPanicError(recovered) })
}
