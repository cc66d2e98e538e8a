package main

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/progress"
)

// startProgress shows the progress of a job on a terminal.
func (a *app) startProgress(job jobs.Job) (show func(jobs.Progress), stop func()) {
	before, total := job.Reached()
	if total <= 100 || !isTerminal(a.err) {
		return func(jobs.Progress) {}, func() {} // too short to read, or not read
	}
	var done atomic.Int64
	done.Store(int64(before))
	stop = progress.Line{
		Out: a.err, What: "messages", Style: progress.Bar, Columns: a.widthOf(a.err),
		Sample: func() progress.State { return progress.State{Done: done.Load(), Total: int64(total)} },
	}.Start()
	return func(p jobs.Progress) {
		job.Progress = p
		n, _ := job.Reached()
		done.Store(int64(n))
	}, stop
}

// stepLog is the log of jobs here. It prints why a step is repeated, once for each cause.
type stepLog struct {
	slog.Handler
	app   *app
	shown atomic.Value // last printed line
}

// Enabled implements slog.Handler.
func (*stepLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (l *stepLog) Handle(_ context.Context, r slog.Record) error {
	line := strings.TrimPrefix(r.Message, "jobs: ")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			line += ": " + a.Value.String()
		}
		return true
	})
	if l.shown.Swap(line) == line {
		return nil
	}
	over := ""
	if isTerminal(l.app.err) {
		over = "\r\x1b[K" // the progress line is redrawn below
	}
	l.app.note("%s", over+"weir: "+escaped(oneLine(withoutSecrets(line, l.app.url))))
	return nil
}
