package main

import (
	"strconv"
	"time"

	"github.com/weirflow/weir/internal/storearg"
)

const (
	lineSigns = 20              // of the line of a queue
	signSpan  = 3 * time.Minute // of a sign
)

// heights are the signs of a line, the lowest first. Zero has the first.
var heights = []rune("▁▂▃▄▅▆▇█")

// minute is a number of messages in a minute, or -1 if they were not counted.
type minute struct {
	at time.Time
	n  int
}

// lastHour is the last hour of a queue in the engine's history, the oldest first.
type lastHour struct {
	minutes []minute
	now     int // messages at the end
}

// lastHourOf returns the last hour of a queue. The engine keeps the hours of queues,
// which include their layers, and of dead letters, but not of a single layer.
func lastHourOf(s *topJSON, q counted) (h lastHour) {
	base, isOfOutbox := storearg.OutboxOfDead(q.Queue)
	part := storearg.PartOf(q.Queue)
	isDead := isOfOutbox || part.Role == storearg.RoleDead
	if !isOfOutbox {
		base = part.Queue
	}
	if !isDead && q.Queue != base {
		return lastHour{}
	}
	for _, p := range s.minutes[base] {
		n := p.Waiting
		if isDead {
			n = p.Dead
		}
		h.minutes = append(h.minutes, minute{p.At, n})
		if n >= 0 {
			h.now = n
		}
	}
	if isDead {
		h.now = q.Messages
	}
	return h
}

// change returns by how many messages a queue has grown since the first count.
func (h lastHour) change() string {
	for _, m := range h.minutes {
		if m.n < 0 {
			continue
		}
		n := h.now - m.n
		if n > 0 {
			return "+" + strconv.Itoa(n)
		}
		return strconv.Itoa(n)
	}
	return "-"
}

// line draws the numbers of messages until now. Minutes that were not counted continue
// the line, and minutes without a point are gaps.
func (h lastHour) line(now time.Time) string {
	if len(h.minutes) == 0 {
		return ""
	}
	const isGap = -1
	spans := make([]int, lineSigns) // the highest number of each
	for i := range spans {
		spans[i] = isGap
	}
	begin := now.Add(-lineSigns * signSpan)
	last, most := isGap, 0
	for _, m := range h.minutes {
		i := int(m.at.Sub(begin) / signSpan)
		if m.n >= 0 {
			last = m.n
			most = max(most, m.n)
		}
		if !m.at.Before(begin) && i < lineSigns {
			spans[i] = max(spans[i], last)
		}
	}
	line := make([]rune, lineSigns)
	for i, n := range spans {
		line[i] = sign(n, most)
	}
	return string(line)
}

// sign returns the sign of a number, of which the highest is most. A negative number is a
// gap.
func sign(n, most int) rune {
	switch {
	case n < 0:
		return ' '
	case n == 0:
		return heights[0]
	}
	steps := len(heights) - 1 // above zero
	return heights[1+(n*steps-1)/most]
}
