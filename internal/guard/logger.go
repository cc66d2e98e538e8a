package guard

import (
	"context"
	"log/slog"
)

// Logger returns a logger with the handler of l, which is a user's and may break: what it does not log is lost, and the caller goes
// on (law A6).
func Logger(l *slog.Logger) *slog.Logger { return slog.New(safeHandler{l.Handler()}) }

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
	return Call(func() error { return h.Handler.Handle(ctx, r) }, ignore)
}

// WithAttrs implements slog.Handler.
func (h safeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := slog.DiscardHandler
	_ = Call(func() error { with = h.Handler.WithAttrs(attrs); return nil }, ignore)
	return safeHandler{with}
}

// WithGroup implements slog.Handler.
func (h safeHandler) WithGroup(name string) slog.Handler {
	with := slog.DiscardHandler
	_ = Call(func() error { with = h.Handler.WithGroup(name); return nil }, ignore)
	return safeHandler{with}
}
