package guard

import (
	"context"
	"fmt"
	"log/slog"
)

// Logger returns a logger for weir's own lines, which go to the handler of l, or of
// slog.Default() if l is nil. It hides the secrets of URLs (see [Text]) in messages,
// strings and errors. A changed error unwraps to the original. If the handler panics, the
// line is lost, and the caller continues (law A6). A logger of Logger is returned
// unchanged.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		l = slog.Default()
	}
	if _, ok := l.Handler().(safeHandler); ok {
		return l
	}
	return slog.New(safeHandler{l.Handler()})
}

// safeHandler calls a user's handler.
type safeHandler struct{ slog.Handler }

func ignore(any) error { return nil }

// Enabled implements slog.Handler.
func (h safeHandler) Enabled(ctx context.Context, level slog.Level) bool {
	enabled := false
	_ = Call(func() error { enabled = h.Handler.Enabled(ctx, level); return nil }, ignore)
	return enabled
}

// Handle implements slog.Handler.
func (h safeHandler) Handle(ctx context.Context, r slog.Record) error {
	return Call(func() error {
		redacted := slog.NewRecord(r.Time, r.Level, WithoutSecrets(r.Message), r.PC)
		r.Attrs(func(a slog.Attr) bool {
			redacted.AddAttrs(redactedAttr(a))
			return true
		})
		return h.Handler.Handle(ctx, redacted)
	}, ignore)
}

// WithAttrs implements slog.Handler.
func (h safeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := slog.DiscardHandler
	_ = Call(func() error { with = h.Handler.WithAttrs(redactedAttrs(attrs)); return nil }, ignore)
	return safeHandler{with}
}

// WithGroup implements slog.Handler.
func (h safeHandler) WithGroup(name string) slog.Handler {
	with := slog.DiscardHandler
	_ = Call(func() error { with = h.Handler.WithGroup(name); return nil }, ignore)
	return safeHandler{with}
}

func redactedAttrs(attrs []slog.Attr) []slog.Attr {
	redacted := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		redacted[i] = redactedAttr(a)
	}
	return redacted
}

// redactedAttr returns an attribute without the secrets of URLs. It changes strings,
// errors and groups.
func redactedAttr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(WithoutSecrets(a.Value.String()))
	case slog.KindGroup:
		a.Value = slog.GroupValue(redactedAttrs(a.Value.Group())...)
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.AnyValue(redacted(err))
		}
	default:
	}
	return a
}

// redacted returns err if its text has no secrets, otherwise an error with the redacted
// text.
func redacted(err error) error {
	text := Text(err)
	if text == fmt.Sprint(err) {
		return err
	}
	return &redactedError{err, text}
}

// redactedError replaces an error's text.
type redactedError struct {
	err  error
	text string
}

func (e *redactedError) Error() string { return e.text }

func (e *redactedError) Unwrap() error { return e.err }
