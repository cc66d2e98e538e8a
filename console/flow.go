package console

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// window is the time over which the growth of a queue is averaged: workers report their
// numbers every 20 s.
const window = 20 * time.Second

// beat is a worker's report of the messages that it has taken from its queue.
type beat struct {
	at    time.Time
	taken int     // since it began
	rate  float64 // a second, since the beat before
}

// flows returns how many messages a second workers take from each queue. It is for one
// look at a time.
func (s *server) flows(l *look) map[string]float64 {
	before := s.beats
	s.beats = make(map[string]beat, len(l.Workers))
	rates := map[string]float64{}
	for _, w := range l.Workers {
		queue := w.Reads + w.Outbox // only one is set
		if queue == "" || w.Silent {
			continue
		}
		var c struct{ Received, Redelivered int } // redelivered messages come from its layers
		_ = json.Unmarshal(w.Counts, &c)
		now := beat{at: w.Seen, taken: c.Received - c.Redelivered}
		was, ok := before[w.ID]
		if !ok {
			was = beat{at: w.Since}
		}
		switch took := w.Seen.Sub(was.at).Seconds(); {
		case ok && took <= 0:
			now = was
		case took > 0:
			now.rate = max(0, float64(now.taken-was.taken)/took)
		}
		s.beats[w.ID] = now
		rates[queue] += now.rate
	}
	return rates
}

// point is a queue's number of messages at a time, and how many a second came and were
// taken.
type point struct {
	at      time.Time
	n       int
	in, out float64
}

// flow sets the rate of new messages: the taken messages, and the queue's growth.
func (p *point) flow(before []point) {
	p.in = p.out
	if len(before) == 0 {
		return
	}
	since := before[0]
	for _, b := range before {
		if p.at.Sub(b.at) >= window {
			since = b
		}
	}
	if took := p.at.Sub(since.at).Seconds(); took > 0 {
		p.in = max(0, p.out+float64(p.n-since.n)/took)
	}
}

// sparkline returns a value of points as a line in a picture 100 wide and 20 high, whose
// top is most.
func sparkline(h []point, most float64, value func(point) float64) string {
	if len(h) < 2 {
		return ""
	}
	span := max(float64(h[len(h)-1].at.Sub(h[0].at)), 1)
	var b strings.Builder
	for _, p := range h {
		fmt.Fprintf(&b, "%.1f,%.1f ", 100*float64(p.at.Sub(h[0].at))/span, 19-18*value(p)/max(most, 1e-9))
	}
	return strings.TrimSpace(b.String())
}

func (q *queueState) draw(h []point, known bool) {
	first, last := h[0], h[len(h)-1]
	q.Change, q.Over = last.n-first.n, last.at.Sub(first.at)
	most, fastest := 1.0, 0.0
	for _, p := range h {
		most, fastest = max(most, float64(p.n)), max(fastest, p.in, p.out)
	}
	q.Line = sparkline(h, most, func(p point) float64 { return float64(p.n) })
	if known && len(h) > 1 {
		q.In, q.Out = perSecond(last.in), perSecond(last.out)
		q.InLine = sparkline(h, fastest, func(p point) float64 { return p.in })
		q.OutLine = sparkline(h, fastest, func(p point) float64 { return p.out })
	}
}

func perSecond(r float64) string {
	if r > 0 && r < 10 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return num(int(math.Round(r)))
}
