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
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/message"
)

// Logs are for people: at most logBurst lines of one kind in logPeriod.
const (
	logBurst  = 10
	logPeriod = time.Second
)

// ration bounds lines that are alike: burst of them in a period, and then one about the
// rest. Owned by the loop.
type ration struct {
	key    any
	burst  int
	period time.Duration
	until  time.Duration // the end of the period, by the operator's clock
	lines  int           // in the period, those that were not written included
	rest   func(n int)   // writes about n of them
}

// mostRations bounds the rations. The last one is for the lines of all other kinds.
const mostRations = 128

type otherKinds struct{}

// mayWrite reports whether another line of its kind may be written now. rest writes one
// about n that may not.
func (s *frontend[IN, OUT]) mayWrite(key any, burst int, period time.Duration, rest func(n int)) bool {
	now := s.now()
	i := slices.IndexFunc(s.rations, func(r *ration) bool { return r.key == key })
	if i < 0 {
		if len(s.rations) >= mostRations-1 {
			s.rations = slices.DeleteFunc(s.rations, func(r *ration) bool { return r.lines <= r.burst && now >= r.until })
		}
		if i = len(s.rations); i >= mostRations-1 && key != (otherKinds{}) {
			return s.mayWrite(otherKinds{}, logBurst, logPeriod, func(n int) {
				s.logAttrs(s.ctx, slog.LevelWarn, "asyncop: lines of more kinds suppressed", slog.Int("suppressed", n))
			})
		}
		s.rations = append(s.rations, &ration{key: key, burst: burst, period: period})
	}
	r := s.rations[i]
	if now >= r.until {
		r.endPeriod(now)
	}
	if r.lines++; r.lines > burst {
		r.rest = rest
	}
	return r.lines <= burst
}

// endPeriod writes about the rest, and begins a period.
func (r *ration) endPeriod(now time.Duration) {
	n, rest := r.lines-r.burst, r.rest
	if r.lines, r.rest, r.until = 0, nil, now+r.period; n > 0 {
		if r.burst == 1 {
			r.lines = 1 // this is the line of the next period
		}
		rest(n)
	}
}

// linesDue returns when flushLines has something to write, or core.Never.
func (s *frontend[IN, OUT]) linesDue() time.Duration {
	due := s.failingDue()
	for _, r := range s.rations {
		if r.lines > r.burst {
			due = min(due, r.until)
		}
	}
	return due
}

// flushLines writes the lines that are due: about the rest of a period, which are all due
// at the end of the operator, and about failing attempts.
func (s *frontend[IN, OUT]) flushLines(all bool) {
	now := s.now()
	for _, r := range slices.Clone(s.rations) { // to write a line may take rations out
		if r.lines > r.burst && (all || now >= r.until) {
			r.endPeriod(now)
		}
	}
	s.logFailing()
}

// logsDebug reports whether lines for those who look closely are written at all. The
// handler is asked off the loop, like everything of the user's that is called for logs.
func (s *frontend[IN, OUT]) logsDebug() (logs bool) {
	_ = s.offLoop(func() error { logs = s.logger.Enabled(s.ctx, slog.LevelDebug); return nil })
	return logs
}

// now returns when the core last looked at the clock.
func (s *frontend[IN, OUT]) now() time.Duration { return s.driver.Core().State().Now }

// log writes a line about an element, unless there are too many of its kind. Handlers
// find in ctx what observers know of the element, such as the id of its trace.
func (s *frontend[IN, OUT]) log(ctx context.Context, level slog.Level, msg string, in IN, attrs ...slog.Attr) {
	type kind struct {
		level slog.Level
		msg   string
	}
	if s.mayWrite(kind{level, msg}, logBurst, logPeriod, func(n int) {
		s.logAttrs(s.ctx, level, msg+": lines suppressed", slog.Int("suppressed", n))
	}) {
		attrs = append(attrs, slog.String("element", s.labelOf(in, false)))
		if meta := s.metaOf(ctx); meta.ID != "" {
			attrs = append(attrs, slog.String("id", meta.ID), slog.Int("visit", meta.Visit))
		}
		s.logAttrs(ctx, level, msg, attrs...)
	}
}

// logGivenUp reports an element that failed, and the reason why there was no other
// attempt; one line stands for those that are alike. What the failure sink makes of it,
// such as a dead letter, is its own to log.
func (s *frontend[IN, OUT]) logGivenUp(r core.Report[IN], how observe.EndKind) {
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
	if s.group(r, func(more int) {
		s.log(r.Context, slog.LevelWarn, msg+", and others for the same reason", r.Element, append(attrs(), slog.Int("elements", more))...)
	}) {
		s.log(r.Context, slog.LevelWarn, msg, r.Element, attrs()...)
	}
}

// logNotTaken reports an element that the failure sink has not taken, and when it is
// offered again; 0: never.
func (s *frontend[IN, OUT]) logNotTaken(r core.Report[IN], err error, wait time.Duration) {
	if wait == 0 {
		s.log(r.Context, slog.LevelWarn, "asyncop: the failure sink can never take an element: it is rejected", r.Element, slog.Any("error", err))
		return
	}
	s.log(r.Context, slog.LevelWarn, "asyncop: the failure sink did not take an element", r.Element,
		slog.Any("error", err), slog.Duration("again", wait))
}

// logDeclined reports an element that the failure sink has not taken at the end. That it
// takes none that was cut off may be as it should be.
func (s *frontend[IN, OUT]) logDeclined(r core.Report[IN], err error) {
	level := slog.LevelError
	if !r.Failed {
		if level = slog.LevelDebug; !s.logsDebug() {
			return
		}
	}
	s.log(r.Context, level, "asyncop: the failure sink did not take an element at the end", r.Element, slog.Any("error", err))
}

// logSourceBroke reports a panic of a message's source, while the message was being
// settled. Called from any goroutine.
func (s *frontend[IN, OUT]) logSourceBroke(err error) {
	s.write(s.ctx, slog.LevelError, "asyncop: the source of a message panicked", slog.Any("error", err))
}

// logDecision reports an outcome that there was a reason to retry, and whether it will
// be.
func (s *frontend[IN, OUT]) logDecision(r core.Report[IN], d decision.Decision, again bool) {
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

// logAttrs is write for the loop: time passes.
func (s *frontend[IN, OUT]) logAttrs(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	s.driver.Core().Away(true)
	s.write(ctx, level, msg, attrs...)
}

// write calls the user's handler off the loop, since it may do anything (law A6). A line
// about a panic has its stack. Of ctx only the values count.
func (s *frontend[IN, OUT]) write(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	if s.name != "" {
		attrs = append(attrs, slog.String("operator", s.name))
	}
	_ = call.OffLoop(func() error {
		s.logger.LogAttrs(context.WithoutCancel(ctx), level, msg, withStack(attrs)...)
		return nil
	})
}

// withStack gives a line about a panic an attribute with the stack. Handlers that format
// errors with %+v would write it a second time, in the midst of the line.
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

// metaOf returns that of the message that an element is; zero if it is none.
func (s *frontend[IN, OUT]) metaOf(ctx context.Context) (meta message.Meta) {
	_ = s.offLoop(func() error { meta, _ = message.MetaFromContext(ctx); return nil }) // the context is one of the observers'
	return meta
}

// labelOf names an element for people: by its LogValue, if it has one, else by
// defaultLabel.
func (s *frontend[IN, OUT]) labelOf(in IN, quoted bool) (text string) {
	if err := s.offLoop(func() error { // it may have methods
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

// defaultLabel names what has no LogValue. A string is quoted, unless that is left to the
// handler of a log.
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

// offLoop is offLoop for calls that the loop makes: time passes.
func (s *frontend[IN, OUT]) offLoop(f func() error) error {
	s.driver.Core().Away(true)
	return call.OffLoop(f)
}
