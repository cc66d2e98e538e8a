package optest

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing/synctest"
	"time"

	"github.com/weirflow/weir/internal/guard"
)

// Breakage is user code that ends without returning.
type Breakage struct {
	Name   string
	Breaks func()
	Value  any // of the PanicError
}

// Panics returns the breakages that are panics.
func Panics() []Breakage { return Breakages[:2:2] }

var Breakages = []Breakage{
	{"panic", func() { panic("broken") }, "broken"},
	{"panic with an error", func() { panic(ErrBroken) }, ErrBroken},
	{"goexit", runtime.Goexit, guard.ErrGoexit},
}

// OwnStrategy is a strategy for errors, made of functions.
type OwnStrategy struct {
	Can     func() bool
	Backoff func() time.Duration
}

func (s OwnStrategy) CanRetry(int) bool                   { return s.Can == nil || s.Can() }
func (s OwnStrategy) BackoffTime(int) time.Duration       { return s.Backoff() }
func (s OwnStrategy) RetryPredicate() PredicatesOfStrings { return ErrorsOnly }

// CallsOf returns the first calls of the elements that were called.
func (h *Hand) CallsOf(elements string) []*Call {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []*Call
	for _, c := range h.Made {
		if strings.Contains(elements, c.In) && c.Attempt == 1 && h.scripts[c.String()] == nil {
			found = append(found, c)
		}
	}
	return found
}

// BreakingHandler is a slog.Handler that calls a function for each record.
type BreakingHandler func()

func (h BreakingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h BreakingHandler) Handle(context.Context, slog.Record) error { h(); return nil }
func (h BreakingHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h BreakingHandler) WithGroup(string) slog.Handler             { return h }
