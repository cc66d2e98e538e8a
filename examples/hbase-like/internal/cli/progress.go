package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Sample is how far the run has come.
type Sample struct {
	Ended    int   // flights that came out, one way or another
	InFlight int64 // look-ups under way, those that wait for a retry included
	Waiting  int64 // look-ups that wait for a retry
	Retries  int64 // so far
	Trouble  string
}

// Progress shows how far the run has come, until it is stopped.
type Progress struct {
	show   shower
	sample func() Sample
	done   chan struct{} // closed by Stop
	wg     sync.WaitGroup
}

// shower draws samples. It belongs to one goroutine at a time.
type shower interface {
	show(Sample)
	finish(Sample)
}

// Intervals between two samples. Lines in a log are for keeps, a bar is not.
const (
	plainEvery = time.Second
	barEvery   = 100 * time.Millisecond
)

// StartProgress shows samples on w. A total below 0 is not known.
func StartProgress(w io.Writer, style Style, total int, sample func() Sample) *Progress {
	width := columns(w)
	p := &Progress{sample: sample, done: make(chan struct{})}
	var every time.Duration
	switch style.on(isTerminal(w), width) {
	case Bar:
		p.show, every = newBar(w, total, width), barEvery
	case Plain:
		p.show, every = &lines{w: w, total: total, begun: time.Now()}, plainEvery
	default:
		return p
	}
	p.wg.Go(func() { p.run(every) })
	return p
}

// on returns the style for a terminal, or something else, of so many columns. A bar that wraps cannot be drawn over.
func (s Style) on(terminal bool, columns int) Style {
	switch {
	case s == Auto && !terminal, (s == Auto || s == Bar) && columns < barColumns:
		return Plain
	case s == Auto:
		return Bar
	default:
		return s
	}
}

func (p *Progress) run(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.show.show(p.sample())
		case <-p.done:
			return
		}
	}
}

// Stop shows the last sample and ends the display.
func (p *Progress) Stop() {
	close(p.done)
	p.wg.Wait()
	if p.show != nil {
		p.show.finish(p.sample())
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// lines is progress for logs.
type lines struct {
	w     io.Writer
	total int
	begun time.Time
}

func (l *lines) show(s Sample) {
	of := ""
	if l.total >= 0 {
		of = " of " + count(l.total)
	}
	_, _ = fmt.Fprintf(l.w, "%5.1fs  %s%s flights done, %s in flight, %s of them waiting for a retry, %s retries so far%s\n",
		time.Since(l.begun).Seconds(), count(s.Ended), of, count(s.InFlight), count(s.Waiting), count(s.Retries), last(s.Trouble))
}

func (l *lines) finish(s Sample) { l.show(s) }

// bar is progress for terminals.
type bar struct {
	w    io.Writer
	bar  *progressbar.ProgressBar
	room int // runes that fit behind the bar
}

// barWidth is the width of the bar itself, barColumns that of its line without what stands behind it.
const (
	barWidth   = 12
	barColumns = barWidth + 36
)

// newBar returns a bar for a terminal of so many columns, at least barColumns.
func newBar(w io.Writer, total, columns int) *bar {
	return &bar{w: w, room: columns - barColumns, bar: progressbar.NewOptions(max(total, -1),
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(barWidth),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own, which nothing would wait for
		progressbar.OptionSetTheme(progressbar.ThemeASCII),
	)}
}

func (b *bar) show(s Sample) {
	text := ""
	for _, part := range []string{" " + count(s.Waiting) + " waiting", ", " + count(s.Retries) + " retries", last(s.Trouble)} {
		if len(text)+len(part) > b.room { // a part is there as a whole, or not at all
			break
		}
		text += part
	}
	b.bar.Describe(text)
	_ = b.bar.Set(s.Ended) // an estimated total may be too low: the bar stays full
}

func (b *bar) finish(s Sample) {
	b.show(s)
	_, _ = fmt.Fprintln(b.w)
}

// columns returns the width of a terminal, or a usual one.
func columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 120
}

func last(trouble string) string {
	if trouble == "" {
		return ""
	}
	return ", last trouble: " + trouble
}
