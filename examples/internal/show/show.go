// Package show prints how far an example has come.
package show

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Style is how progress is shown.
type Style string

// The styles.
const (
	Auto  Style = "auto"  // a bar on a terminal, else lines
	Bar   Style = "bar"   // one line that changes
	Plain Style = "plain" // a line a second
	Off   Style = "off"
)

// IsOne reports whether there is such a style.
func (s Style) IsOne() bool { return s == Auto || s == Bar || s == Plain || s == Off }

// On returns the style for an output: Auto is Bar on a terminal, else Plain.
func (s Style) On(w io.Writer) Style {
	if s != Auto {
		return s
	}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return Bar
	}
	return Plain
}

// Columns returns the width of a terminal, or a usual one.
func Columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 80
}

const (
	barWidth   = 20
	barColumns = barWidth + 36 // with what the bar writes around it
)

// Progress shows how many of total things are done, and a text, until it is stopped.
func Progress(w io.Writer, style Style, total int64, what string, sample func() (done int64, text string)) (stop func()) {
	begun := time.Now()
	var show func()
	every := time.Second
	finish := func() {}
	switch style.On(w) {
	case Bar:
		room := max(0, Columns(w)-barColumns)
		bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(), progressbar.OptionSetWidth(barWidth),
			progressbar.OptionSetPredictTime(false), progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionClearOnFinish())
		every = 100 * time.Millisecond
		show = func() {
			done, text := sample()
			shown := []rune(" " + text)
			bar.Describe(string(shown[:min(len(shown), room)]))
			_ = bar.Set64(done) // what cannot be shown is not worth an error
		}
		finish = func() { _ = bar.Clear() }
	case Plain:
		show = func() {
			done, text := sample()
			fmt.Fprintf(w, "%5.1fs  %s of %s %s, %s\n", time.Since(begun).Seconds(), Count(done), Count(total), what, text)
		}
	default:
		return func() {}
	}
	return Every(every, func(last bool) {
		show()
		if last {
			finish()
		}
	})
}

// Every calls draw at intervals, one call at a time, and a last time when it is stopped.
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

// Count returns a number with commas.
func Count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
