package checkpoint

import (
	"context"
	"log/slog"

	"github.com/weirflow/weir/internal/guard"
)

// safeHandler is the handler of a user, which may break: what it does not log is lost, and the run goes on (law A6).
type safeHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (h safeHandler) Enabled(ctx context.Context, level slog.Level) bool {
	enabled := false
	_ = guard.Call(func() error { enabled = h.Handler.Enabled(ctx, level); return nil }, newPanicError)
	return enabled
}

// Handle implements slog.Handler.
func (h safeHandler) Handle(ctx context.Context, r slog.Record) error {
	return guard.Call(func() error { return h.Handler.Handle(ctx, r) }, newPanicError)
}

// WithAttrs implements slog.Handler.
func (h safeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := slog.DiscardHandler
	_ = guard.Call(func() error { with = h.Handler.WithAttrs(attrs); return nil }, newPanicError)
	return safeHandler{with}
}

// WithGroup implements slog.Handler.
func (h safeHandler) WithGroup(name string) slog.Handler {
	with := slog.DiscardHandler
	_ = guard.Call(func() error { with = h.Handler.WithGroup(name); return nil }, newPanicError)
	return safeHandler{with}
}
