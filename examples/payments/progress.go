package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// startProgress shows how far the orders are: a bar on a terminal, else a line a second.
func (s *supervisor) startProgress(w io.Writer) (stop func()) {
	style := s.Progress
	if style == "auto" {
		style = "plain"
		if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			style = "bar"
		}
	}
	var show func()
	every := time.Second
	finish := func() {}
	switch style {
	case "bar":
		bar := progressbar.NewOptions64(s.Orders, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(),
			progressbar.OptionSetWidth(20), progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
		every = 100 * time.Millisecond
		show = func() {
			now, text := s.shown()
			bar.Describe(text)
			_ = bar.Set64(now.Done) // what cannot be shown is not worth an error
		}
		finish = func() { _ = bar.Clear() }
	case "plain":
		show = func() {
			now, text := s.shown()
			fmt.Fprintf(w, "%5.1fs  %s of %s orders done, %s\n", time.Since(s.begun).Seconds(), thousands(now.Done), thousands(s.Orders), text)
		}
	default:
		return func() {}
	}
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-done:
				show()
				finish()
				return
			}
		}
	})
	return func() {
		close(done)
		ended.Wait()
	}
}

// shown returns what is shown.
func (s *supervisor) shown() (sample, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%s calls, %s in doubt, killed: %d × job, %d × provider",
		thousands(s.before.Calls+s.now.Calls), thousands(s.before.InDoubt+s.now.InDoubt), s.jobs, s.deaths)
	if s.trouble != "" {
		text += ", last: " + s.trouble
	}
	return s.now, text
}
