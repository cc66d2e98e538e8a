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

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// Limits of the lines of one kind: logBurst lines in logPeriod.
const (
	logBurst  = 10
	logPeriod = time.Second
)

// ration limits the lines of one kind: burst lines in a period, then one line about the
// suppressed lines. It is owned by the loop.
type ration struct {
	key    any
	burst  int
	period time.Duration
	until  time.Duration // the end of the period, by the operator's clock
	lines  int           // in the period, including suppressed lines
	rest   func(n int)   // writes the line about n suppressed lines
}

// mostRations limits the rations. The last one is for the lines of all other kinds.
const mostRations = 128

type otherKinds struct{}

// mayWrite reports whether another line of its kind may be written now. rest writes the
// line about n suppressed lines.
func (s *frontend[IN, OUT]) mayWrite(key any, burst int, period time.Duration, rest func(n int)) bool {
	now := s.now()
	i := slices.IndexFunc(s.rations, func(r *ration) bool { return r.key == key })
	if i < 0 {
		if len(s.rations) >= mostRations-1 {
			s.rations = slices.DeleteFunc(s.rations, func(r *ration) bool { return r.lines <= r.burst && now >= r.until })
		}
		i = len(s.rations)
		if i >= mostRations-1 && key != (otherKinds{}) {
			return s.mayWrite(otherKinds{}, logBurst, logPeriod, func(n int) {
				s.Log(s.ctx, slog.LevelWarn, "asyncop: lines of more kinds suppressed", slog.Int("suppressed", n))
			})
		}
		s.rations = append(s.rations, &ration{key: key, burst: burst, period: period})
	}
	r := s.rations[i]
	if now >= r.until {
		r.endPeriod(now)
	}
	r.lines++
	if r.lines > burst {
		r.rest = rest
	}
	return r.lines <= burst
}

// endPeriod writes the line about suppressed lines, and begins a period.
func (r *ration) endPeriod(now time.Duration) {
	n, rest := r.lines-r.burst, r.rest
	r.lines, r.rest = 0, nil
	r.until = now + r.period
	if n > 0 {
		if r.burst == 1 {
			r.lines = 1 // rest writes the line of the next period
		}
		rest(n)
	}
}

// LinesDue returns when FlushLines has something to write, or core.Never.
func (s *frontend[IN, OUT]) LinesDue() time.Duration {
	due := s.failingDue()
	for _, r := range s.rations {
		if r.lines > r.burst {
			due = min(due, r.until)
		}
	}
	return due
}

// FlushLines writes the lines that are due: about suppressed lines, all of which are due
// at the end of the operator, and about failing attempts.
func (s *frontend[IN, OUT]) FlushLines(all bool) {
	now := s.now()
	for _, r := range slices.Clone(s.rations) { // writing a line may remove rations
		if r.lines > r.burst && (all || now >= r.until) {
			r.endPeriod(now)
		}
	}
	s.logFailing()
}

// LogsDebug reports whether debug lines are written. It calls the user's handler off the
// loop.
func (s *frontend[IN, OUT]) LogsDebug() (logs bool) {
	_ = s.offLoop(func() error { logs = s.logger.Enabled(s.ctx, slog.LevelDebug); return nil })
	return logs
}

// now returns the core's last reading of the clock.
func (s *frontend[IN, OUT]) now() time.Duration { return s.driver.Core().State().Now }

// log writes a line about an element, unless there are too many of its kind. ctx has the
// values of observers, such as a trace id, for handlers.
func (s *frontend[IN, OUT]) log(ctx context.Context, level slog.Level, msg string, in IN, attrs ...slog.Attr) {
	type kind struct {
		level slog.Level
		msg   string
	}
	if s.mayWrite(kind{level, msg}, logBurst, logPeriod, func(n int) {
		s.Log(s.ctx, level, msg+": lines suppressed", slog.Int("suppressed", n))
	}) {
		attrs = append(attrs, slog.String("element", s.labelOf(in, false)))
		if meta := s.metaOf(ctx); meta.ID != "" {
			attrs = append(attrs, slog.String("id", meta.ID), slog.Int("visit", meta.Visit))
		}
		s.Log(ctx, level, msg, attrs...)
	}
}

// LogGivenUp reports an element that failed, with the reason against a retry. The failure
// sink logs what it does with the element itself.
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
	s.logGroup(r, msg, s.count(r), "elements", attrs)
}

// logGroup writes a warning about a failure, or counts it for the next line of its group:
// similar failures have one line per groupPeriod, with their number as the attribute
// counted.
func (s *frontend[IN, OUT]) logGroup(r core.Report[IN], msg string, group counting.Key, counted string, attrs func() []slog.Attr) {
	type lines struct {
		msg   string
		group counting.Key
	}
	if s.mayWrite(lines{msg, group}, 1, groupPeriod, func(more int) {
		s.log(r.Context, slog.LevelWarn, msg+", and others for the same reason", r.Element, append(attrs(), slog.Int(counted, more))...)
	}) {
		s.log(r.Context, slog.LevelWarn, msg, r.Element, attrs()...)
	}
}

// LogNotTaken reports an element that the failure sink has not taken, and the wait until
// the next offer; 0 means that there are no more offers.
func (s *frontend[IN, OUT]) LogNotTaken(r core.Report[IN], err error, wait time.Duration) {
	group, _ := s.groupOf(err, predicates.Reason{})
	if wait == 0 {
		s.logGroup(r, "asyncop: the failure sink can never take an element: it is rejected", group, "elements",
			func() []slog.Attr { return []slog.Attr{slog.Any("error", err)} })
		return
	}
	s.logGroup(r, "asyncop: the failure sink did not take an element", group, "offers",
		func() []slog.Attr { return []slog.Attr{slog.Any("error", err), slog.Duration("again", wait)} })
}

// LogDeclined reports an element that the failure sink has not taken at the end. For
// elements that were cut off this may be intended.
func (s *frontend[IN, OUT]) LogDeclined(r core.Report[IN], err error) {
	level := slog.LevelError
	if !r.Failed {
		level = slog.LevelDebug
		if !s.LogsDebug() {
			return
		}
	}
	s.log(r.Context, level, "asyncop: the failure sink did not take an element at the end", r.Element, slog.Any("error", err))
}

// LogSourcePanic reports a panic of a message's source during settlement. Any goroutine
// may call it.
func (s *frontend[IN, OUT]) LogSourcePanic(err error) {
	s.write(s.ctx, slog.LevelError, "asyncop: the source of a message panicked", slog.Any("error", err))
}

// LogDecision reports an outcome with a reason to retry, and whether it is retried.
func (s *frontend[IN, OUT]) LogDecision(r core.Report[IN], d decision.Decision, again bool) {
	msg, noRetry := "asyncop: retry", d.NoRetryReason.String()
	attrs := []slog.Attr{slog.Int("attempts", r.Attempts)}
	if d.NoRetryReason == decision.Retried {
		attrs, noRetry = append(attrs, slog.Duration("delay", max(d.Delay, d.Demanded))), "not before the deadline"
	}
	attrs = append(attrs, slog.String("reason", d.Reason.String()), slog.Any("error", d.Err))
	if !again {
		msg, attrs = "asyncop: no retry", append(attrs, slog.String("no_retry", noRetry))
	}
	s.log(r.Context, slog.LevelDebug, msg, r.Element, attrs...)
}

// LogObserverPanic reports a panic of an observer.
func (s *frontend[IN, OUT]) LogObserverPanic(err error) {
	s.Log(s.ctx, slog.LevelError, "asyncop: an observer broke", slog.Any("error", err))
}

// Log is write for the loop. It may take time.
func (s *frontend[IN, OUT]) Log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	s.driver.Core().Away(true)
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

// withStack adds an attribute with the stack to a line about a panic. Handlers that
// format errors with %+v would otherwise write the stack a second time.
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

// metaOf returns the Meta of the element's message, or zero.
func (s *frontend[IN, OUT]) metaOf(ctx context.Context) (meta message.Meta) {
	_ = s.offLoop(func() error { meta, _ = message.MetaFromContext(ctx); return nil }) // the context may be made by an observer
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

// defaultLabel returns the label of an element without LogValue. quoted is false where
// the log handler quotes strings.
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
	s.driver.Core().Away(true)
	return call.OffLoop(f)
}
