// Package show has the examples' output helpers.
package show

import (
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"
)

// Columns returns a terminal's width, or 80 if it is unknown.
func Columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 80
}

// Every calls draw at intervals, one call at a time, and a last time at stop.
func Every(interval time.Duration, draw func(last bool)) (stop func()) {
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				draw(false)
			case <-done:
				draw(true)
				return
			}
		}
	})
	return func() {
		close(done)
		ended.Wait()
	}
}

// Count formats a number with commas.
func Count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
