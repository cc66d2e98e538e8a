package weirprom

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every time lands in the bucket, classic and native, where client_golang's own histogram
// puts it.
func TestHistogramIsThatOfPrometheus(t *testing.T) {
	var seconds []float64
	for _, d := range DefaultBuckets() {
		seconds = append(seconds, d.Seconds())
	}
	client := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "x", Help: "x", Buckets: seconds, NativeHistogramBucketFactor: 1.1,
	})
	b, err := newBuckets(DefaultBuckets())
	require.NoError(t, err)
	ours := newHistogram(b)
	observe := func(d time.Duration) {
		ours.observe(b, d)
		client.Observe(d.Seconds())
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		observe(time.Duration(random.Int64()) >> random.IntN(63))
	}
	for _, d := range DefaultBuckets() { // the edges
		observe(d - 1)
		observe(d)
		observe(d + 1)
	}
	for i := range 63 {
		observe(1 << i)
		observe(1<<i + 1)
		observe(1<<i - 1)
	}
	observe(0)
	observe(1<<63 - 1)

	var got, want dto.Metric
	desc := prometheus.NewDesc("x", "x", nil, nil)
	require.NoError(t, ours.metric(desc, b).Write(&got))
	require.NoError(t, client.Write(&want))
	g, w := got.GetHistogram(), want.GetHistogram()
	assert.Equal(t, w.GetSampleCount(), g.GetSampleCount())
	assert.InEpsilon(t, w.GetSampleSum(), g.GetSampleSum(), 1e-9)
	require.Len(t, g.GetBucket(), len(w.GetBucket()))
	for i, bucket := range w.GetBucket() {
		assert.InEpsilon(t, bucket.GetUpperBound(), g.GetBucket()[i].GetUpperBound(), 1e-12)
		assert.Equal(t, bucket.GetCumulativeCount(), g.GetBucket()[i].GetCumulativeCount(), bucket.GetUpperBound())
	}
	assert.Equal(t, w.GetSchema(), g.GetSchema())
	assert.Equal(t, w.GetZeroCount(), g.GetZeroCount())
	assert.InEpsilon(t, w.GetZeroThreshold(), g.GetZeroThreshold(), 1e-9)
	assert.Equal(t, perBucket(w), perBucket(g))
}

// perBucket returns the counts of the native buckets.
func perBucket(h *dto.Histogram) map[int32]int64 {
	counts := map[int32]int64{}
	at, n, i := int32(0), int64(0), 0
	for _, span := range h.GetPositiveSpan() {
		at += span.GetOffset()
		for range span.GetLength() {
			n += h.GetPositiveDelta()[i]
			if n > 0 {
				counts[at] = n
			}
			i++
			at++
		}
	}
	return counts
}

// A negative time, which no clock that goes forward makes, counts as 0.
func TestHistogramOfNegativeTimes(t *testing.T) {
	b, err := newBuckets([]time.Duration{time.Second})
	require.NoError(t, err)
	h := newHistogram(b)
	h.observe(b, -time.Second)
	var got dto.Metric
	require.NoError(t, h.metric(prometheus.NewDesc("x", "x", nil, nil), b).Write(&got))
	assert.EqualValues(t, 1, got.GetHistogram().GetSampleCount())
	assert.EqualValues(t, 1, got.GetHistogram().GetZeroCount())
	assert.Zero(t, got.GetHistogram().GetSampleSum())
}
