package weirprom_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/predicates"
)

// scrape reads what a server with this registry answers, as a Prometheus server does, and
// checks it with promlint.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	defer server.Close()
	client := server.Client()
	defer client.CloseIdleConnections()
	response, err := client.Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(text))

	problems, err := promlint.New(strings.NewReader(string(text))).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	require.NoError(t, err)
	return families
}

// valuesOf returns the values of all metrics, by name and labels but for operator,
// pipeline and queue; of a histogram the count.
func valuesOf(families map[string]*dto.MetricFamily, operator string) map[string]float64 {
	values := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			own := false
			for _, l := range m.GetLabel() {
				switch {
				case l.GetName() == "operator" || l.GetName() == "pipeline" || l.GetName() == "queue" || l.GetName() == "backend" || l.GetName() == "worker" || l.GetName() == "service":
					own = l.GetValue() == operator
				case l.GetValue() != "":
					labels = append(labels, l.GetValue())
				}
			}
			if !own {
				continue
			}
			key := strings.Join(append([]string{strings.TrimPrefix(name, "weir_")}, labels...), " ")
			switch {
			case m.Counter != nil:
				values[key] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				values[key] = m.GetGauge().GetValue()
			case m.Histogram != nil:
				values[key] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

// nonZero leaves out what is zero.
func nonZero(values map[string]float64) map[string]float64 {
	maps.DeleteFunc(values, func(_ string, v float64) bool { return v == 0 })
	return values
}

// All metrics of an operator, read through a real HTTP endpoint.
func TestScrape(t *testing.T) {
	metrics := weirprom.New("rows")
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	var before, during, after map[string]float64
	synctest.Test(t, func(t *testing.T) {
		op := tallytest.NewOperator(asyncop.WithName("rows"), asyncop.WithObserver(metrics))
		go func() {
			for range op.Out() {
			}
		}()
		before = metricsOf(t, registry)
		for i := range 4 {
			op.In() <- i
		}
		time.Sleep(time.Second)
		synctest.Wait()
		during = metricsOf(t, registry)
		close(op.In())
		require.NoError(t, op.Wait())
		after = metricsOf(t, registry)
	})
	assert.Equal(t, map[string]float64{"elements_capacity": 10, "calls_limit": 10}, nonZero(maps.Clone(before)))
	assert.Contains(t, before, "elements_ended_total emitted", "a counter is there before it counts")
	assert.Contains(t, before, "retry_backoff_seconds")
	assert.Equal(t, map[string]float64{
		"elements_accepted_total": 4, "elements_ended_total emitted": 1, "results_emitted_total": 2,
		"elements_capacity": 10, "calls_limit": 10, "elements_in_flight": 3, "elements_waiting_for_retry": 2, "calls_running": 1, "oldest_element_age_seconds": 1, "last_error_age_seconds": 1,
		"attempts_total": 4, "attempts_ended_total result": 1, "attempts_ended_total empty MISSING": 1, "attempts_ended_total error BUSY": 1,
		"attempt_duration_seconds": 3, "element_duration_seconds": 1, "element_queue_duration_seconds": 1, "retry_backoff_seconds": 2,
	}, nonZero(during))
	assert.Equal(t, map[string]float64{
		"elements_accepted_total": 4, "elements_ended_total emitted": 2, "elements_ended_total dropped": 2, "results_emitted_total": 4,
		"elements_in_doubt_total": 2, "elements_timed_out_total": 1,
		"attempts_total": 7, "attempts_ended_total result": 2, "attempts_ended_total empty MISSING": 1, "attempts_ended_total error BUSY": 3,
		"element_failures_total BUSY: down BUSY": 1, "element_failures_total asyncop: timed out after # and # attempt": 1,
		"attempts_ended_total error": 1, "retries_total result": 1, "retries_total error": 2, "retries_refused_total strategy": 1,
		"attempt_duration_seconds": 7, "element_duration_seconds": 4, "element_queue_duration_seconds": 4, "retry_backoff_seconds": 3,
	}, nonZero(after))

	// The endpoint has the same values, and also the values of the histograms.
	families := scrape(t, registry)
	assert.Equal(t, after, nonZero(valuesOf(families, "rows")))
	backoff := families["weir_retry_backoff_seconds"].GetMetric()[0].GetHistogram()
	assert.Equal(t, 6.0, backoff.GetSampleSum())
	for _, b := range backoff.GetBucket() {
		want := 0
		if b.GetUpperBound() >= 2 {
			want = 3
		}
		assert.EqualValues(t, want, b.GetCumulativeCount(), b.GetUpperBound())
	}
	assert.Equal(t, 16.0, families["weir_element_duration_seconds"].GetMetric()[0].GetHistogram().GetSampleSum()) // 0, 2, 4 and 10 s
}

// metricsOf reads a registry without HTTP, in a bubble.
func metricsOf(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	got, err := registry.Gather()
	require.NoError(t, err)
	families := map[string]*dto.MetricFamily{}
	for _, f := range got {
		families[f.GetName()] = f
	}
	return valuesOf(families, "rows")
}

// A server that understands them gets native histograms, with the classic buckets beside
// them.
func TestNativeHistograms(t *testing.T) {
	metrics := weirprom.New("rows", weirprom.WithBuckets(time.Millisecond, time.Second))
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	metrics.Ended(t.Context(), observe.Ending{How: observe.Emitted, Total: 500 * time.Millisecond})

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()
	defer server.Client().CloseIdleConnections()
	request, err := http.NewRequest(http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	request.Header.Set("Accept", string(format))
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	decoder := expfmt.NewDecoder(response.Body, expfmt.ResponseFormat(response.Header))
	for {
		var f dto.MetricFamily
		require.NoError(t, decoder.Decode(&f))
		if f.GetName() != "weir_element_duration_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		assert.EqualValues(t, 3, h.GetSchema())
		require.Len(t, h.GetPositiveSpan(), 1)
		assert.EqualValues(t, -8, h.GetPositiveSpan()[0].GetOffset()) // ends at 2^(-8/8) s
		assert.Equal(t, []int64{1}, h.GetPositiveDelta())
		var bounds []float64
		for _, b := range h.GetBucket() {
			bounds = append(bounds, b.GetUpperBound())
		}
		if n := len(bounds); math.IsInf(bounds[n-1], 1) {
			bounds = bounds[:n-1]
		}
		assert.Equal(t, []float64{0.001, 1}, bounds)
		return
	}
}

// Operators with names of their own share a registry; a second collector of the same name
// is refused.
func TestCollector_SeveralOperators(t *testing.T) {
	registry := prometheus.NewRegistry()
	for i, name := range []string{"rows", "users"} {
		metrics := weirprom.New(name)
		registry.MustRegister(metrics)
		op := asyncop.OrderedWait(asyncop.Func(double), 0, 4, asyncop.WithObserver(metrics))
		for _, err := range op.Results(slices.Values(make([]int, i+1))) {
			require.NoError(t, err)
		}
	}
	families := scrape(t, registry)
	assert.EqualValues(t, 1, valuesOf(families, "rows")["elements_accepted_total"])
	assert.EqualValues(t, 2, valuesOf(families, "users")["elements_accepted_total"])
	assert.ErrorAs(t, registry.Register(weirprom.New("rows")), &prometheus.AlreadyRegisteredError{})
}

func double(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
	result.Complete(2 * in)
	return nil
}

// One collector for several operators: it adds the gauges of running operators, and keeps
// the counters of operators that have ended, but not the operators.
func TestCollector_OperatorsOneAfterTheOther(t *testing.T) {
	metrics := weirprom.New("rows")
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	gone := make(chan struct{}, 3)
	for range 3 {
		op := asyncop.OrderedWait(asyncop.Func(double), 0, 4, asyncop.WithObserver(metrics))
		runtime.AddCleanup(op, func(struct{}) { gone <- struct{}{} }, struct{}{})
		for _, err := range op.Results(slices.Values([]int{1, 2})) {
			require.NoError(t, err)
		}
		<-op.Done()
	}
	assert.EqualValues(t, 6, metricsOf(t, registry)["elements_accepted_total"])
	for range 3 {
		runtime.GC()
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			t.Fatal("an operator that has ended is kept")
		}
	}

	synctest.Test(t, func(t *testing.T) {
		var hold sync.WaitGroup
		hold.Add(1)
		slow := asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			hold.Wait()
			return in, nil
		})
		var running sync.WaitGroup
		for n := range 2 {
			op := asyncop.OrderedWait(slow, 0, 4, asyncop.WithObserver(metrics))
			running.Go(func() {
				for range op.Results(slices.Values(make([]int, n+1))) {
				}
				<-op.Done()
			})
			time.Sleep(time.Second)
		}
		values := metricsOf(t, registry)
		assert.EqualValues(t, 3, values["elements_in_flight"])
		assert.EqualValues(t, 3, values["calls_running"])
		assert.EqualValues(t, 2, values["oldest_element_age_seconds"])
		hold.Done()
		running.Wait()
		values = metricsOf(t, registry)
		assert.Zero(t, values["elements_in_flight"])
		assert.EqualValues(t, 9, values["elements_accepted_total"])
		assert.EqualValues(t, 9, values["elements_ended_total emitted"])
		assert.EqualValues(t, 9, values["element_duration_seconds"])
	})
}

// Scrapes while operators run lose no count. For the race detector.
func TestScrapesBesideOperators(t *testing.T) {
	metrics := weirprom.New("rows")
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	const operators, elements = 3, 2000
	var running sync.WaitGroup
	for range operators {
		running.Go(func() {
			op := asyncop.UnorderedWait(asyncop.Func(double), 0, 16, asyncop.WithObserver(metrics))
			for range op.Results(slices.Values(make([]int, elements))) {
			}
			<-op.Done()
		})
	}
	stop := make(chan struct{})
	var scrapes sync.WaitGroup
	scrapes.Go(func() {
		last := 0.0
		for {
			select {
			case <-stop:
				return
			default:
				values := metricsOf(t, registry)
				assert.GreaterOrEqual(t, values["elements_accepted_total"], last, "a counter never goes back")
				last = values["elements_accepted_total"]
			}
		}
	})
	running.Wait()
	close(stop)
	scrapes.Wait()
	values := metricsOf(t, registry)
	assert.EqualValues(t, operators*elements, values["elements_accepted_total"])
	assert.EqualValues(t, operators*elements, values["elements_ended_total emitted"])
	assert.EqualValues(t, operators*elements, values["attempts_ended_total result"])
	assert.EqualValues(t, operators*elements, values["attempt_duration_seconds"])
}

// Metrics need neither the elements nor contexts, so they are not called for each
// element, which would cost most.
func TestMetricsOfAnOperatorThatCallsNoMethodsOfThem(t *testing.T) {
	metrics := weirprom.New("rows")
	assert.NotNil(t, counting.Of(metrics))
	assert.Nil(t, counting.Of(struct{ *weirprom.Metrics }{metrics}))
	elements := make([]int, 2000)
	for i := range elements {
		elements[i] = 1000 + i // Go boxes small ones without an allocation
	}
	perElement := func(opts ...asyncop.Option) float64 {
		return testing.AllocsPerRun(3, func() {
			op := asyncop.OrderedWait(asyncop.Func(double), time.Minute, 16, opts...)
			for _, err := range op.ResultsOf(asyncop.FromSlice(elements)) {
				require.NoError(t, err)
			}
		}) / float64(len(elements))
	}
	assert.Less(t, perElement(asyncop.WithObserver(metrics)), 2.3, "the attempt, its results, and a share of the start")
}

// around is an observer with metrics in it, and a method of its own.
type around struct {
	*weirprom.Metrics
	ended int
}

func (o *around) Ended(ctx context.Context, e observe.Ending) {
	o.ended++
	o.Metrics.Ended(ctx, e)
}

// An observer that embeds metrics is called itself.
func TestEmbeddedMetrics(t *testing.T) {
	o := &around{Metrics: weirprom.New("rows")}
	registry := prometheus.NewRegistry()
	registry.MustRegister(o)
	op := asyncop.OrderedWait(asyncop.Func(double), 0, 4, asyncop.WithObserver(o))
	for _, err := range op.Results(slices.Values([]int{1, 2, 3})) {
		require.NoError(t, err)
	}
	<-op.Done()
	assert.Equal(t, 3, o.ended)
	values := metricsOf(t, registry)
	assert.EqualValues(t, 3, values["elements_ended_total emitted"])
	assert.EqualValues(t, 3, values["attempts_ended_total result"])
	assert.EqualValues(t, 3, values["attempt_duration_seconds"])
	assert.EqualValues(t, 3, values["element_duration_seconds"])
}

// Elements that came after the end are counted, and have no duration.
func TestDiscardedElements(t *testing.T) {
	metrics := weirprom.New("rows")
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		op := asyncop.OrderedWait(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return nil }), 0, 4,
			asyncop.WithObserver(metrics), asyncop.WithContext(ctx))
		op.In() <- 1
		time.Sleep(time.Second)
		cancel()
		<-op.Done()
		op.In() <- 2
		op.In() <- 3
		close(op.In())
		synctest.Wait()
		values := metricsOf(t, registry)
		assert.EqualValues(t, 1, values["elements_ended_total abandoned"])
		assert.EqualValues(t, 2, values["elements_ended_total discarded"])
		assert.EqualValues(t, 1, values["element_duration_seconds"])
		assert.EqualValues(t, 1, values["elements_in_doubt_total"])
	})
}

// Reasons are an open set: their number is bounded, names that are not UTF-8 break no
// scrape, and reasons of the same name are one.
func TestReasons(t *testing.T) {
	metrics := weirprom.New("rows")
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	outcome := func(r predicates.Reason) {
		metrics.AttemptEnded(t.Context(), observe.Outcome{Err: tallytest.ErrDown, Reason: r, Duration: time.Second})
	}
	outcome(predicates.NewReason("SAME", false, false))
	outcome(predicates.NewReason("SAME", true, false))
	outcome(predicates.NewReason("a\xff", false, false))
	outcome(predicates.NewReason("a\xfe", false, false))
	for i := range 200 {
		outcome(predicates.NewReason(fmt.Sprint("R", i), false, false))
	}
	values := valuesOf(scrape(t, registry), "rows")
	assert.EqualValues(t, 2, values["attempts_ended_total error SAME"])
	assert.EqualValues(t, 2, values["attempts_ended_total error a\uFFFD"])
	assert.EqualValues(t, 1, values["attempts_ended_total error R95"])
	assert.EqualValues(t, 104, values["attempts_ended_total error other"])
	assert.NotContains(t, values, "attempts_ended_total error R96")
}

// The numbers of a pipeline's coordinator.
func TestCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tallytest.SlowStore{}
		c, err := checkpoint.NewCoordinator(store, checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		registry := prometheus.NewRegistry()
		registry.MustRegister(weirprom.NewCheckpoints("rows", c))
		c.Host().Register("sevenBytes", tallytest.SevenBytes{})
		require.NoError(t, c.Start())
		values := metricsOf(t, registry)
		assert.Len(t, values, 7)
		assert.Empty(t, nonZero(values))

		_, err = c.Trigger(t.Context())
		require.NoError(t, err)
		stored := float64(time.Now().Unix())
		store.Fails = tallytest.ErrDown
		for range 2 {
			_, err = c.Trigger(t.Context())
			require.ErrorIs(t, err, tallytest.ErrDown)
		}
		assert.Equal(t, map[string]float64{
			"checkpoints_completed_total": 1, "checkpoints_failed_total": 2, "checkpoint_failures_in_row": 2,
			"checkpoint_last_success_timestamp_seconds": stored, "checkpoint_last_duration_seconds": 2, "checkpoint_last_size_bytes": 7,
			"checkpoint_under_way_since_timestamp_seconds": 0,
		}, metricsOf(t, registry))
		require.NoError(t, c.Close())

		text, err := testutil.CollectAndLint(weirprom.NewCheckpoints("rows", c))
		require.NoError(t, err)
		assert.Empty(t, text)
	})
}

// Invalid arguments panic at once.
func TestPanics(t *testing.T) {
	assert.PanicsWithValue(t, "weirprom: New: empty name", func() { weirprom.New("") })
	assert.PanicsWithValue(t, "weirprom: New: option 0 is nil", func() { weirprom.New("rows", nil) })
	assert.PanicsWithValue(t, "weirprom: NewCheckpoints: empty name", func() { weirprom.NewCheckpoints("", nil) })
	assert.PanicsWithValue(t, "weirprom: NewCheckpoints: nil coordinator", func() { weirprom.NewCheckpoints("flights", nil) })
	assert.PanicsWithValue(t, "weirprom: WithBuckets: need 1 to 255 bounds, got 0", func() { weirprom.WithBuckets() })
	assert.PanicsWithValue(t, "weirprom: WithBuckets: bounds must be positive and increase, got 1s after 1s",
		func() { weirprom.WithBuckets(time.Second, time.Second) })
	assert.PanicsWithValue(t, "weirprom: WithBuckets: bounds must be positive and increase, got 0s after 0s",
		func() { weirprom.WithBuckets(0) })
}
