package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/testing/child"
)

const (
	length   = 34 * time.Second
	starts   = 8 * time.Second  // of the third process
	killed   = 18 * time.Second // the first process
	step     = 200 * time.Millisecond
	warmUp   = 5 * time.Second // before the picture begins
	maxCalls = 50.0            // at the top
)

type service struct {
	mu   sync.Mutex
	now  map[string]int
	most int // of all at once
}

func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	s.add(name, 1)
	time.Sleep(takes)
	s.add(name, -1)
}

func (s *service) add(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[name] += n
	sum := 0
	for _, n := range s.now {
		sum += n
	}
	s.most = max(s.most, sum)
}

// sample has the average number of running calls of each process.
type sample [3]float64

var names = [len(sample{})]string{"/1", "/2", "/3"}

func picture(file string, out io.Writer) error {
	s := &service{now: map[string]int{}}
	server := httptest.NewServer(s)
	defer server.Close()
	var all []*child.Process
	defer func() {
		for _, c := range all {
			_ = c.Kill() // it may have ended
		}
	}()
	start := func() error {
		c, err := process{Engine: file, Limit: limit, Service: server.URL + names[len(all)]}.start()
		all = append(all, c)
		return err
	}
	for range 2 {
		err := start()
		if err != nil {
			return err
		}
	}
	time.Sleep(warmUp)
	var samples []sample
	for at := time.Duration(0); at < length; at += step {
		var err error
		if at == starts {
			err = start()
		}
		if at == killed {
			err = all[0].Kill()
		}
		if err != nil {
			return err
		}
		samples = append(samples, s.sample())
	}
	draw(out, samples, s.most)
	return nil
}

func (s *service) sample() sample {
	const reads = 20
	var sums sample
	for range reads {
		time.Sleep(step / reads)
		s.mu.Lock()
		now := maps.Clone(s.now)
		s.mu.Unlock()
		for i, name := range names {
			sums[i] += float64(now[name])
		}
	}
	for i := range sums {
		sums[i] /= reads
	}
	return sums
}

const (
	width, height = 760, 300
	left, right   = 60, 20
	top, bottom   = 40, 50
)

func x(at time.Duration) float64 {
	return left + float64(at)*(width-left-right)/float64(length)
}

func y(calls float64) float64 { return height - bottom - calls*(height-top-bottom)/maxCalls }

func draw(w io.Writer, samples []sample, most int) {
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>Calls at the same time of three processes that share a limit of %d. The third process starts after %.0f s, and the first one is killed after %.0f s. The service counted at most %d calls.</title>
<style>
svg { --ground: #ffffff; --text: #24292f; --grid: #d8dee4; --p0: #0969da; --p1: #1a7f37; --p2: #bf8700; --limit: #cf222e }
@media (prefers-color-scheme: dark) {
svg { --ground: #0d1117; --text: #e6edf3; --grid: #30363d; --p0: #58a6ff; --p1: #3fb950; --p2: #d29922; --limit: #ff7b72 }
}
text { fill: var(--text) }
</style>
<rect width="%d" height="%d" fill="var(--ground)"/>
`, width, height, limit, starts.Seconds(), killed.Seconds(), most, width, height)
	for n := 0.0; n <= maxCalls; n += 10 {
		fmt.Fprintf(w, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="var(--grid)"/><text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n",
			left, width-right, y(n), y(n), left-8, y(n)+4, n)
	}
	for at := time.Duration(0); at <= length; at += 2 * time.Second {
		fmt.Fprintf(w, `<text x="%.1f" y="%d" text-anchor="middle">%.0f s</text>`+"\n", x(at), height-bottom+18, at.Seconds())
	}
	for i := range names {
		drawArea(w, samples, i)
	}
	fmt.Fprintf(w, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="var(--limit)" stroke-width="2"/>`+"\n", left, width-right, y(limit), y(limit))
	drawLegend(w)
	fmt.Fprintln(w, "</svg>")
}

func drawArea(w io.Writer, samples []sample, process int) {
	fmt.Fprintf(w, `<polygon fill="var(--p%d)" opacity="0.6" points="`, process)
	sum := func(s sample, n int) (sum float64) {
		for _, calls := range s[:n] {
			sum += calls
		}
		return sum
	}
	for i, s := range samples {
		fmt.Fprintf(w, "%.1f,%.1f ", x(time.Duration(i)*step), y(sum(s, process+1)))
	}
	for i, s := range slices.Backward(samples) {
		fmt.Fprintf(w, "%.1f,%.1f ", x(time.Duration(i)*step), y(sum(s, process)))
	}
	fmt.Fprintln(w, `"/>`)
}

func drawLegend(w io.Writer) {
	at := left
	for _, label := range []struct{ color, text string }{
		{"p0", "calls of process 1"}, {"p1", "process 2"}, {"p2", "process 3"}, {"limit", "limit"},
	} {
		fmt.Fprintf(w, `<rect x="%d" y="14" width="12" height="12" fill="var(--%s)" opacity="0.7"/><text x="%d" y="24">%s</text>`+"\n",
			at, label.color, at+18, label.text)
		at += 40 + 7*len(label.text)
	}
	for _, edge := range []struct {
		at   time.Duration
		text string
	}{{starts, "process 3 starts"}, {killed, "process 1 is killed"}} {
		fmt.Fprintf(w, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="var(--text)" stroke-dasharray="4 3"/><text x="%.1f" y="%d">%s</text>`+"\n",
			x(edge.at), x(edge.at), top, height-bottom, x(edge.at)+5, top+14, edge.text)
	}
}
