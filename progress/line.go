package progress

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// Style is the style of the progress, usable as a flag's value.
type Style string

// The styles.
const (
	Auto  Style = "auto"  // Bar on a terminal, otherwise Plain; the default, like ""
	Bar   Style = "bar"   // a line that is redrawn ten times a second
	Plain Style = "plain" // a line every second, after ten seconds every ten seconds
	Off   Style = "off"   // no output, not even the summary
)

// IsOne reports whether s is a known style.
func (s Style) IsOne() bool { return s == Auto || s == Bar || s == Plain || s == Off }

// On returns the style for an output: for Auto, Bar on a terminal and Plain otherwise,
// else s.
func (s Style) On(w io.Writer) Style {
	if s != Auto && s != "" {
		return s
	}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return Bar
		}
	}
	return Plain
}

// Line shows the progress of a job from Start until its stop.
type Line struct {
	Out    io.Writer    // usually standard error; errors are ignored
	Sample func() State // called on the line's goroutine, never concurrently; required

	What    string // name of the counted things, such as "orders", in log lines and in the summary
	Style   Style  // default: Auto
	Columns int    // width of the terminal; default: COLUMNS in the environment, or 80; a Bar never wraps
}

const (
	drawEvery  = 100 * time.Millisecond
	lineEvery  = time.Second
	lateEvery  = 10 * time.Second // between log lines of a longer job
	rateWindow = 10 * time.Second
)

// Start starts the display, and returns a function that stops it and writes the summary.
// stop may be called more than once, and returns after everything is written. Start
// panics if Out or Sample is nil, or if Style is unknown.
func (l Line) Start() (stop func()) {
	guard.RefuseNil("progress: Line", "Out", l.Out)
	guard.RefuseNil("progress: Line", "Sample", l.Sample)
	style := l.Style.On(l.Out)
	if !style.IsOne() {
		panic(fmt.Sprintf("progress: Line: no such style: %q", l.Style))
	}
	if style == Off {
		return func() {}
	}
	if l.Columns == 0 {
		l.Columns, _ = strconv.Atoi(os.Getenv("COLUMNS"))
	}
	if l.Columns <= 0 {
		l.Columns = 80
	}
	d := &display{Line: l, isBar: style == Bar, clock: clock.New()}
	d.begun = d.clock.Now()
	d.note(l.Sample())
	d.before = d.state.Done
	done := make(chan struct{}) // closed by stop
	var ended sync.WaitGroup
	every := lineEvery
	if d.isBar {
		every = drawEvery
	}
	ticker := d.clock.Ticker(every)
	ended.Go(func() { // ends with done
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				d.tick()
			case <-done:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		ended.Wait()
		d.finish()
	})
}

// display is a started line, used by one goroutine at a time.
type display struct {
	Line
	clock  clock.Clock
	isBar  bool
	begun  time.Time
	before int64 // done by earlier runs

	state  State
	points []point // samples for the rate, a second apart, at most rateWindow old
	shown  time.Duration
	drawn  int // columns of the text on the terminal
}

type point struct {
	at   time.Duration
	done int64
}

func (d *display) note(s State) (now time.Duration) {
	now, d.state = d.clock.Since(d.begun), s
	if n := len(d.points); n == 0 || now-d.points[n-1].at >= time.Second {
		d.points = append(d.points, point{now, s.Done})
	}
	for len(d.points) > 1 && now-d.points[1].at >= rateWindow {
		d.points = d.points[1:]
	}
	return now
}

// rate returns the recent number of elements per second.
func (d *display) rate(now time.Duration) float64 {
	return perSecond(d.state.Done-d.points[0].done, now-d.points[0].at)
}

func perSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func (d *display) tick() {
	now := d.note(d.Sample())
	switch {
	case d.isBar:
		d.draw(d.bar(now))
	case now < lateEvery+lineEvery/2 || now-d.shown > lateEvery-lineEvery/2: // the ticker may be slightly late
		d.shown = now
		text := d.parts(now, d.What)
		if d.state.LastError != nil {
			text = append(text, errorText(d.state.LastError)+age(d.state.LastErrorAge))
		}
		d.write(fmt.Sprintf("%5.1fs  %s\n", now.Seconds(), strings.Join(text, ", ")))
	}
}

func (d *display) finish() {
	now := d.note(d.Sample())
	s := &d.state
	in, text := "in", ""
	if s.Done < s.Total {
		in, text = "after", "stopped at "
	}
	text += fmt.Sprintf("%s %s %.1fs", amount(*s, d.What), in, now.Seconds())
	parts := []string{text}
	if d.before > 0 {
		parts = append(parts, count(d.before)+" of them before")
	}
	if s.Failed > 0 {
		parts = append(parts, count(s.Failed)+" failed")
	}
	if rate := perSecond(s.Done-d.before, now); rate > 0 {
		parts = append(parts, rateText(rate))
	}
	if s.Retries > 0 {
		parts = append(parts, count(s.Retries)+" retries")
	}
	if s.LastError != nil {
		parts = append(parts, "last error"+age(s.LastErrorAge)+": "+errorText(s.LastError))
	}
	d.draw("")
	d.write(strings.Join(parts, ", ") + "\n")
}

func (d *display) draw(text string) {
	width := columns(text)
	if width == 0 && d.drawn == 0 {
		return
	}
	padded := "\r" + text + strings.Repeat(" ", max(0, d.drawn-width))
	d.drawn = width
	if text == "" {
		padded += "\r"
	}
	d.write(padded)
}

func (d *display) write(text string) {
	_, _ = io.WriteString(d.Out, text) // best effort
}
