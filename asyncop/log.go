package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// lineKey is the key of failures that share log lines.
type lineKey struct {
	level slog.Level
	msg   string
	group counting.Key
}

// mostLineGroups limits the groups with lines of their own. Others share a group for each
// level.
const mostLineGroups = 100

var otherFailures = counting.Key{Kind: "failures of further groups"}

// mayWrite reports whether a failure may have a line now. If not, it is counted, and rest
// may write the next line of its group.
func (s *frontend[IN, OUT]) mayWrite(key lineKey, rest func(more int)) bool {
	if s.lines.HasRoom(key, s.now()) {
		return s.lines.Begin(key, s.now(), rest)
	}
	others := lineKey{level: key.level, group: otherFailures}
	return s.lines.Begin(others, s.now(), func(more int) {
		s.Log(s.ctx, key.level, "asyncop: failures for other reasons, without a line for each reason", slog.Int("failures", more))
	})
}

// LinesDue returns when FlushLines is due, or core.Never.
func (s *frontend[IN, OUT]) LinesDue() time.Duration {
	at, ok := s.lines.Due()
	if ok {
		return min(at, s.failingDue())
	}
	return s.failingDue()
}

// FlushLines writes the lines that are due, about similar failures (all of them at the
// end) and about failing attempts.
func (s *frontend[IN, OUT]) FlushLines(all bool) {
	s.lines.Flush(s.now(), all)
	s.logFailing()
}

// LogsDebug reports whether debug lines are written. It calls the user's handler.
func (s *frontend[IN, OUT]) LogsDebug() (logs bool) {
	_ = s.offLoop(func() error { logs = s.logger.Enabled(s.ctx, slog.LevelDebug); return nil })
	return logs
}

func (s *frontend[IN, OUT]) now() time.Duration { return s.driver.Core().State().Now }

// elementAttr returns the label of an element as an attribute.
func (s *frontend[IN, OUT]) elementAttr(in IN) slog.Attr {
	return slog.String("element", s.labelOf(in, false))
}

// log writes a line about an element. ctx is its context, whose values, such as a trace
// id, handlers may use.
func (s *frontend[IN, OUT]) log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	meta := s.metaOf(ctx)
	if meta.ID != "" {
		attrs = append(attrs, slog.String("id", meta.ID), slog.Int("visit", meta.Visit))
	}
	s.Log(ctx, level, msg, attrs...)
}

// LogGivenUp reports a failed element, with the reason against a retry. The failure sink
// logs what it does itself.
func (s *frontend[IN, OUT]) LogGivenUp(r core.Report[IN], how observe.EndKind) {
	msg := "asyncop: element handed over to the failure sink"
	if how == observe.Dropped {
		msg = "asyncop: element dropped"
	}
	attrs := func() []slog.Attr {
		attrs := []slog.Attr{slog.Int("attempts", r.Attempts), slog.Any("error", r.Err)}
		if r.NoRetryReason != decision.Final {
			attrs = append(attrs, slog.String("no_retry", r.NoRetryReason.String()))
		}
		if !r.Reason.IsZero() {
			attrs = append(attrs, slog.String("reason", r.Reason.String()))
		}
		if r.InDoubt {
			attrs = append(attrs, slog.Bool("in_doubt", true))
		}
		return attrs
	}
	s.logGroup(r, slog.LevelWarn, msg, s.count(r), "elements", attrs)
}

// logGroup writes a line about a failure, or counts it for the next line of its group.
// That line has the number of failures as the attribute counted. It has the last
// element's label only if that runs no user code, because the element may belong to its
// consumer by then.
func (s *frontend[IN, OUT]) logGroup(r core.Report[IN], level slog.Level, msg string, group counting.Key, counted string, attrs func() []slog.Attr) {
	if s.mayWrite(lineKey{level, msg, group}, func(more int) {
		all := append(attrs(), slog.Int(counted, more))
		_, hasMethod := any(r.Element).(slog.LogValuer)
		if !hasMethod {
			all = append(all, s.elementAttr(r.Element))
		}
		s.log(r.Context, level, msg+", and others for the same reason", all...)
	}) {
		s.log(r.Context, level, msg, append(attrs(), s.elementAttr(r.Element))...)
	}
}

// LogNotTaken reports an element that the failure sink has not taken. wait is the time
// until the next offer, or 0 without one.
func (s *frontend[IN, OUT]) LogNotTaken(r core.Report[IN], err error, wait time.Duration) {
	group, _ := s.groupOf(err, predicates.Reason{}, &s.groups.failures)
	if wait == 0 {
		s.logGroup(r, slog.LevelWarn, "asyncop: the failure sink can never take an element: it is rejected", group, "elements",
			func() []slog.Attr { return []slog.Attr{slog.Any("error", err)} })
		return
	}
	s.logGroup(r, slog.LevelWarn, "asyncop: the failure sink did not take an element", group, "offers",
		func() []slog.Attr { return []slog.Attr{slog.Any("error", err), slog.Duration("again", wait)} })
}

// LogDeclined reports an element that the failure sink has not taken at the end. If it
// was cut off, this may be intended.
func (s *frontend[IN, OUT]) LogDeclined(r core.Report[IN], err error) {
	level := slog.LevelError
	if r.CutOff {
		level = slog.LevelDebug
		if !s.LogsDebug() {
			return
		}
	}
	group, _ := s.groupOf(err, predicates.Reason{}, &s.groups.failures)
	s.logGroup(r, level, "asyncop: the failure sink did not take an element at the end", group, "elements",
		func() []slog.Attr { return []slog.Attr{slog.Any("error", err)} })
}

// LogSourcePanic reports a panic of a message's source. Any goroutine may call it.
func (s *frontend[IN, OUT]) LogSourcePanic(err error) {
	s.write(s.ctx, slog.LevelError, "asyncop: the source of a message panicked", slog.Any("error", err))
}

// LogDecision reports an outcome with a reason to retry, and whether it is retried.
func (s *frontend[IN, OUT]) LogDecision(r core.Report[IN], d decision.Decision, isRetried bool) {
	isAskedFor := d.NoRetryReason == decision.Retried
	attrs := []slog.Attr{slog.Int("attempts", r.Attempts)}
	if isAskedFor {
		attrs = append(attrs, slog.Duration("delay", max(d.Delay, d.Demanded)))
	}
	attrs = append(attrs, slog.String("reason", d.Reason.String()), slog.Any("error", d.Err))
	msg := "asyncop: retry"
	counted := "retries"
	if !isRetried {
		msg = "asyncop: no retry"
		counted = "elements"
		noRetry := d.NoRetryReason.String()
		if isAskedFor {
			noRetry = "not before the deadline"
		}
		attrs = append(attrs, slog.String("no_retry", noRetry))
	}
	group, _ := s.groupOf(d.Err, d.Reason, &s.groups.decisions)
	s.logGroup(r, slog.LevelDebug, msg, group, counted, func() []slog.Attr { return attrs })
}

// LogObserverPanic reports a panic of an observer.
func (s *frontend[IN, OUT]) LogObserverPanic(err error) {
	s.Log(s.ctx, slog.LevelError, "asyncop: an observer broke", slog.Any("error", err))
}

// Log is write for the loop. It may take time.
func (s *frontend[IN, OUT]) Log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	s.driver.Core().NoteSlept()
	s.write(ctx, level, msg, attrs...)
}

// LogAfterEnd writes a line after the end. Any goroutine may call it.
func (s *frontend[IN, OUT]) LogAfterEnd(level slog.Level, msg string, attrs ...slog.Attr) {
	s.write(s.ctx, level, msg, attrs...)
}

// write calls the user's handler off the loop (law A6). A line about a panic has its
// stack. Only the values of ctx are used.
func (s *frontend[IN, OUT]) write(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	if s.name != "" {
		attrs = append(attrs, slog.String("operator", s.name))
	}
	_ = call.OffLoop(func() error {
		s.logger.LogAttrs(context.WithoutCancel(ctx), level, msg, withStack(attrs)...)
		return nil
	})
}

// withStack adds the stack to a line about a panic, and prevents handlers that format
// errors with %+v from writing it again.
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

// plainError hides the Format method of an error.
type plainError struct{ error }

func (e plainError) Unwrap() error { return e.error }

// metaOf returns the Meta of the element's message.
func (s *frontend[IN, OUT]) metaOf(ctx context.Context) (meta message.Meta) {
	_ = s.offLoop(func() error { meta, _ = message.MetaFromContext(ctx); return nil }) // an observer may have made the context
	return meta
}

// labelOf returns a label of an element: its LogValue or, without one, defaultLabel.
func (s *frontend[IN, OUT]) labelOf(in IN, quoted bool) (text string) {
	if err := s.offLoop(func() error { // user code: LogValue or String
		if v, ok := any(in).(slog.LogValuer); ok {
			text = v.LogValue().Resolve().String()
		} else {
			text = defaultLabel(in, quoted)
		}
		return nil
	}); err != nil {
		return fmt.Sprintf("(label: %v)", err)
	}
	return text
}

const maxLabel = 64 // bytes of a default label

// defaultLabel returns the label of an element without LogValue. quoted is false if the
// log handler quotes strings.
func defaultLabel(in any, quoted bool) string {
	switch v := reflect.ValueOf(in); {
	case !v.IsValid():
		return "<nil>"
	case v.Kind() == reflect.String:
		s, rest := v.String(), ""
		if end := maxLabel; len(s) > end {
			for end > 0 && !utf8.RuneStart(s[end]) {
				end--
			}
			s, rest = s[:end], "…"
		}
		if quoted {
			s = strconv.Quote(s)
		}
		return s + rest
	case v.Kind() == reflect.Bool, v.CanInt(), v.CanUint(), v.CanFloat(), v.CanComplex():
		return fmt.Sprint(v)
	default:
		return "of type " + v.Type().String()
	}
}

// offLoop is call.OffLoop for the loop. It may take time.
func (s *frontend[IN, OUT]) offLoop(f func() error) error {
	s.driver.Core().NoteSlept()
	return call.OffLoop(f)
}
