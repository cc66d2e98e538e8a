package weirprom

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Native histograms of schema 3 have 8 buckets for each power of two: bucket i ends at
// 2^(i/8) seconds.
const (
	schema    = 3
	perOctave = 1 << schema
	lowest    = -30 * perOctave // ends just below a nanosecond
	highest   = 34 * perOctave  // ends above the longest time.Duration
)

// native are the buckets of native histograms, from lowest on.
var native = func() *buckets {
	ends := make([]int64, highest-lowest)
	for i := range ends {
		ends[i] = math.MaxInt64
		if end := math.Exp2(float64(i+lowest)/perOctave) * float64(time.Second); end < math.MaxInt64 {
			ends[i] = int64(end)
		}
	}
	return bucketsOf(ends)
}()

// buckets are the ends of histogram buckets, in increasing order. Read-only.
type buckets struct {
	ends  []int64    // in nanoseconds
	first [65]uint16 // by the bit length of a time: the first bucket that may hold it
}

func bucketsOf(ends []int64) *buckets {
	b := &buckets{ends: ends}
	for n := 1; n < len(b.first); n++ {
		b.first[n] = uint16(b.search(1<<(n-1), 0))
	}
	return b
}

// newBuckets returns nil if the bounds are not positive, or not in increasing order.
func newBuckets(bounds []time.Duration) (*buckets, error) {
	if len(bounds) == 0 || len(bounds) > math.MaxUint8 {
		return nil, fmt.Errorf("need 1 to %d bounds, got %d", math.MaxUint8, len(bounds))
	}
	ends := make([]int64, 0, len(bounds))
	last := time.Duration(0)
	for _, bound := range bounds {
		if bound <= last {
			return nil, fmt.Errorf("bounds must be positive and increase, got %v after %v", bound, last)
		}
		last = bound
		ends = append(ends, int64(bound))
	}
	return bucketsOf(ends), nil
}

// of returns the bucket of a non-negative time; len(b.ends) is the bucket without end.
func (b *buckets) of(d time.Duration) int {
	return b.search(uint64(d), int(b.first[bits.Len64(uint64(d))]))
}

func (b *buckets) search(ns uint64, from int) int {
	for from < len(b.ends) && uint64(b.ends[from]) < ns {
		from++
	}
	return from
}

// histogram counts times. Its owner's lock guards it.
type histogram struct {
	sum     float64 // in nanoseconds
	zero    uint64
	classic []uint64
	native  [highest - lowest]uint64
}

func newHistogram(b *buckets) *histogram { return &histogram{classic: make([]uint64, len(b.ends)+1)} }

func (h *histogram) observe(b *buckets, d time.Duration) {
	d = max(d, 0)
	h.classic[b.of(d)]++
	if d == 0 {
		h.zero++
		return
	}
	h.sum += float64(d)
	h.native[native.of(d)]++
}

func (h *histogram) clone() *histogram {
	c := *h
	c.classic = append([]uint64(nil), h.classic...)
	return &c
}

func (h *histogram) metric(desc *prometheus.Desc, b *buckets) prometheus.Metric {
	upTo := make(map[float64]uint64, len(b.ends))
	count := uint64(0)
	for i, n := range h.classic {
		count += n
		if i < len(b.ends) {
			upTo[time.Duration(b.ends[i]).Seconds()] = count
		}
	}
	positive := map[int]int64{}
	for i, n := range h.native {
		if n > 0 {
			positive[i+lowest] = int64(n)
		}
	}
	sum := h.sum / float64(time.Second)
	return both{
		Metric: prometheus.MustNewConstHistogram(desc, count, sum, upTo),
		native: prometheus.MustNewConstNativeHistogram(desc, count, sum, positive, nil, h.zero, schema,
			prometheus.DefNativeHistogramZeroThreshold, time.Time{}),
	}
}

// both is a classic and native histogram, which client_golang lacks as a constant.
type both struct {
	prometheus.Metric
	native prometheus.Metric
}

func (m both) Write(out *dto.Metric) error {
	if err := m.Metric.Write(out); err != nil {
		return err
	}
	var native dto.Metric
	if err := m.native.Write(&native); err != nil {
		return err
	}
	to, from := out.GetHistogram(), native.GetHistogram()
	to.Schema = from.Schema
	to.ZeroThreshold = from.ZeroThreshold
	to.ZeroCount = from.ZeroCount
	to.PositiveSpan, to.PositiveDelta = from.PositiveSpan, from.PositiveDelta
	return nil
}
