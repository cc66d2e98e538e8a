package jobs

import (
	"slices"
	"time"
)

const (
	buckets        = 24
	shortestBucket = time.Minute
)

// Histogram counts events in equal spans of time that end at End. The zero value is
// empty.
type Histogram struct {
	End    time.Time     `json:"end"`
	Width  time.Duration `json:"width"`  // of a span: a minute, times a power of two; in ns
	Counts []int         `json:"counts"` // of up to 24 spans, the last span first
}

// add counts an event. The spans become longer if they do not reach it.
func (h *Histogram) add(at time.Time) {
	if h.Width == 0 {
		h.End, h.Width = at, shortestBucket
	}
	h.extendTo(at)
	for h.span(at) >= buckets {
		h.widen()
	}
	for len(h.Counts) <= h.span(at) {
		h.Counts = append(h.Counts, 0)
	}
	h.Counts[h.span(at)]++
}

func (h *Histogram) extendTo(at time.Time) {
	for at.After(h.End) {
		more := int((at.Sub(h.End) + h.Width - 1) / h.Width)
		if more+len(h.Counts) > buckets {
			h.widen()
			continue
		}
		h.Counts = slices.Concat(make([]int, more), h.Counts)
		h.End = h.End.Add(time.Duration(more) * h.Width)
	}
}

// span returns the number of the span of a time, from 0 for the last.
func (h *Histogram) span(at time.Time) int { return int(h.End.Sub(at) / h.Width) }

// widen joins each two spans.
func (h *Histogram) widen() {
	h.Width *= 2
	for i, n := range h.Counts {
		if i%2 == 0 {
			h.Counts[i/2] = n
		} else {
			h.Counts[i/2] += n
		}
	}
	h.Counts = h.Counts[:(len(h.Counts)+1)/2]
}

func (h *Histogram) clone() Histogram {
	return Histogram{End: h.End, Width: h.Width, Counts: slices.Clone(h.Counts)}
}
