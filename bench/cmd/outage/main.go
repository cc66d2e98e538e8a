// Command outage draws an operator at a backend whose service is down for some seconds:
//
//	go run ./bench/cmd/outage > docs/backend.svg
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	length = 26 * time.Second
	down   = 5 * time.Second
	up     = 13 * time.Second
	step   = 250 * time.Millisecond
)

type sample struct {
	answered, lost int64
	state          backend.State
}

func main() {
	samples, stats := measure()
	log.Printf("answered, lost and down: %+v", stats)
	out := bufio.NewWriter(os.Stdout)
	draw(out, samples)
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

func measure() (samples []sample, stats backend.Stats) {
	var answered, lost atomic.Int64
	start := time.Now()
	serve := func(context.Context, int) (int, error) {
		time.Sleep(20 * time.Millisecond)
		if at := time.Since(start); at >= down && at < up {
			lost.Add(1)
			return 0, &httpretry.StatusError{StatusCode: 503}
		}
		answered.Add(1)
		return 0, nil
	}
	b := backend.New("payments", backend.Limit(50), backend.Rate(400, time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(serve), time.Hour, 500,
		strategies.FixedDelay[int](5, 100*time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithBackend(b), asyncop.WithContext(ctx), asyncop.WithDropOnFailure())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		endless := func(yield func(int) bool) {
			for yield(0) {
			}
		}
		for _, err := range op.Results(endless) {
			if err != nil { // ctx has ended
				return
			}
		}
	}()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for range int(length / step) {
		<-ticker.C
		samples = append(samples, sample{answered.Swap(0), lost.Swap(0), b.Stats().State})
	}
	<-done
	return samples, b.Stats()
}

const (
	width, height = 760, 300
	left, right   = 60, 20
	top, bottom   = 40, 50
	most          = 450.0 // calls a second
)

func x(i int) float64 {
	return left + float64(i)*(width-left-right)/float64(length/step)
}

func y(perSecond float64) float64 {
	return height - bottom - min(perSecond, most)*(height-top-bottom)/most
}

func draw(w io.Writer, samples []sample) {
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>Answered and lost calls a second of a service that is away from 5 s to 13 s, behind a backend of 400 calls a second</title>
<style>
svg { --ground: #ffffff; --text: #24292f; --grid: #d8dee4; --answered: #0969da; --lost: #cf222e; --down: #cf222e; --probing: #9a6700; --ramping: #1a7f37 }
@media (prefers-color-scheme: dark) {
svg { --ground: #0d1117; --text: #e6edf3; --grid: #30363d; --answered: #58a6ff; --lost: #ff7b72; --down: #ff7b72; --probing: #d29922; --ramping: #3fb950 }
}
text { fill: var(--text) }
</style>
<rect width="%d" height="%d" fill="var(--ground)"/>
`, width, height, width, height)
	for i, s := range samples {
		if s.state != backend.Up {
			fmt.Fprintf(w, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="var(--%s)" opacity="0.14"/>`+"\n",
				x(i), top, x(1)-x(0), height-top-bottom, s.state)
		}
	}
	for n := 0.0; n <= most; n += 100 {
		fmt.Fprintf(w, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="var(--grid)"/><text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n",
			left, width-right, y(n), y(n), left-8, y(n)+4, n)
	}
	for at := time.Duration(0); at <= length; at += 2 * time.Second {
		fmt.Fprintf(w, `<text x="%.1f" y="%d" text-anchor="middle">%.0f s</text>`+"\n", x(int(at/step)), height-bottom+18, at.Seconds())
	}
	line(w, samples, "answered", func(s sample) int64 { return s.answered })
	line(w, samples, "lost", func(s sample) int64 { return s.lost })
	at := left
	for _, label := range []struct{ color, text string }{
		{"answered", "answered a second"}, {"lost", "lost a second"}, {"down", "down"}, {"probing", "probing"}, {"ramping", "ramping"},
	} {
		opacity := 1.0
		if label.color == "down" || label.color == "probing" || label.color == "ramping" {
			opacity = 0.3
		}
		fmt.Fprintf(w, `<rect x="%d" y="14" width="12" height="12" fill="var(--%s)" opacity="%.1f"/><text x="%d" y="24">%s</text>`+"\n",
			at, label.color, opacity, at+18, label.text)
		at += 36 + 7*len(label.text)
	}
	for _, edge := range []struct {
		at   time.Duration
		text string
	}{{down, "the service goes away"}, {up, "it is back"}} {
		fmt.Fprintf(w, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="var(--text)" stroke-dasharray="4 3"/><text x="%.1f" y="%d">%s</text>`+"\n",
			x(int(edge.at/step)), x(int(edge.at/step)), top, height-bottom, x(int(edge.at/step))+5, top+14, edge.text)
	}
	fmt.Fprintln(w, "</svg>")
}

func line(w io.Writer, samples []sample, color string, value func(s sample) int64) {
	fmt.Fprintf(w, `<polyline fill="none" stroke="var(--%s)" stroke-width="2" points="`, color)
	for i, s := range samples {
		fmt.Fprintf(w, "%.1f,%.1f ", x(i)+(x(1)-x(0))/2, y(float64(value(s))/step.Seconds()))
	}
	fmt.Fprintln(w, `"/>`)
}
