package progress_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/progress"
	"github.com/weirflow/weir/strategies"
)

// job completes rate elements per second.
type job struct {
	progress.State
	begun time.Time
	rate  int64
	done  atomic.Int64 // elements done in addition to rate
}

func (j *job) sample() progress.State {
	s := j.State
	s.Done += j.done.Load() + j.rate*int64(time.Since(j.begun)/time.Millisecond)/1000
	return s
}

// shown runs a line for d, and returns its output.
func shown(t *testing.T, l progress.Line, j *job, d time.Duration) string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		j.begun = time.Now()
		l.Out, l.Sample = &out, j.sample
		stop := l.Start()
		time.Sleep(d)
		synctest.Wait()
		stop()
		stop()
	})
	return out.String()
}

// drawings returns the texts that a terminal has shown in its line, without the blanks
// that clear it.
func drawings(out string) (all []string) {
	for line := range strings.SplitSeq(out, "\r") {
		if line = strings.TrimRight(line, " "); line != "" {
			all = append(all, line)
		}
	}
	return all
}

func TestPlainLines(t *testing.T) {
	j := &job{State: progress.State{Total: 20_000, InFlight: 64, Retries: 1234, LastError: errors.New("region\nmove")}, rate: 1000}
	out := shown(t, progress.Line{What: "flights"}, j, 2500*time.Millisecond) // a buffer is not a terminal
	assert.Equal(t, `  1.0s  1,000 of 20,000 flights, 1,000/s, 19s left, 64 in flight, 1,234 retries, region move
  2.0s  2,000 of 20,000 flights, 1,000/s, 18s left, 64 in flight, 1,234 retries, region move
stopped at 2,500 of 20,000 flights after 2.5s, 1,000/s, 1,234 retries, last error: region move
`, out)
}

// A long job does not flood its log.
func TestPlainLinesOfALongJob(t *testing.T) {
	out := shown(t, progress.Line{Style: progress.Plain}, &job{State: progress.State{Total: 3600}, rate: 1}, time.Hour)
	assert.Len(t, strings.Split(out, "\n"), 10+359+2)
	assert.Contains(t, out, "\n 10.0s  10 of 3,600, 1.0/s, 59m50s left\n 20.0s  20 of ")
	assert.True(t, strings.HasSuffix(out, "\n3,600 of 3,600 in 3600.0s, 1.0/s\n"), out)
}

func TestBar(t *testing.T) {
	j := &job{State: progress.State{Total: 20_000, InFlight: 64, Retries: 1234, LastError: errors.New("region server 3 went away")}, rate: 1000}
	out := shown(t, progress.Line{Style: progress.Bar, What: "flights"}, j, 20*time.Second)
	all := drawings(out)
	assert.Len(t, all, 200+1)
	assert.Equal(t, "1,000 of 20,000, 1,000/s, 19s left, 64 in flight, 1,234 retries, region server…", all[9])
	assert.Equal(t, "20,000 of 20,000 flights in 20.0s, 1,000/s, 1,234 retries, last error: region server 3 went away\n", all[200])
}

// A wrapped line could not be redrawn, and a word that is cut is useless. The last column
// stays free.
func TestBarFits(t *testing.T) {
	for _, columns := range []int{1, 10, 25, 48, 80, 120} {
		for _, trouble := range []string{"region server 3 went away, and its regions are nowhere to be found at the moment", "日本語のエラーがここにありますので長い行になります", "\x1b[2J"} {
			j := &job{State: progress.State{Total: 20_000_000, InFlight: 1000, Retries: 123_456, LastError: errors.New(trouble)}, rate: 12_345}
			for _, line := range drawings(shown(t, progress.Line{Style: progress.Bar, Columns: columns}, j, time.Second)) {
				if strings.HasSuffix(line, "\n") {
					continue // the summary
				}
				width := 0
				for _, r := range line {
					if width++; r > 0x3000 {
						width++
					}
				}
				assert.Less(t, width, max(columns, 2), line)
				assert.NotContains(t, line, "\x1b")
				if columns >= 25 {
					assert.NotRegexp(t, `retr(ies?)?…|fligh?…|retri?e?$`, line)
				}
			}
		}
	}
}

func TestColumnsOfTheEnvironment(t *testing.T) {
	t.Setenv("COLUMNS", "30")
	for _, line := range drawings(shown(t, progress.Line{Style: progress.Bar}, &job{State: progress.State{Total: 1e6, InFlight: 99}, rate: 1000}, time.Second)) {
		if !strings.HasSuffix(line, "\n") {
			assert.Less(t, utf8.RuneCountInString(line), 30, line)
		}
	}
}

// A short line clears the rest of a longer one.
func TestBarClears(t *testing.T) {
	j := &job{State: progress.State{Total: 10}}
	var errs atomic.Pointer[error]
	failed := errors.New("trouble of some length")
	errs.Store(&failed)
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		l := progress.Line{Out: &out, Style: progress.Bar, Sample: func() progress.State {
			s := j.State
			if err := errs.Load(); err != nil {
				s.LastError = *err
			}
			return s
		}}
		stop := l.Start()
		time.Sleep(150 * time.Millisecond)
		errs.Store(nil)
		time.Sleep(100 * time.Millisecond)
		stop()
	})
	lines := strings.Split(out.String(), "\r")
	assert.Equal(t, []string{
		"", "  0 %  0 of 10, trouble of some length", "  0 %  0 of 10                        ", "              ", "stopped at 0 of 10 after 0.2s\n",
	}, lines)
}

// Work of earlier runs affects neither the rate nor the time left.
func TestRestart(t *testing.T) {
	j := &job{State: progress.State{Done: 16_000, Total: 20_000}, rate: 100}
	out := shown(t, progress.Line{What: "orders"}, j, time.Second)
	assert.Equal(t, "  1.0s  16,100 of 20,000 orders, 100/s, 39s left\n"+
		"stopped at 16,100 of 20,000 orders after 1.0s, 16,000 of them before, 100/s\n", out)
}

// After an outage the time left follows the recent rate.
func TestRateIsOfLately(t *testing.T) {
	j := &job{State: progress.State{Total: 100_000}}
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		j.begun = time.Now()
		stop := progress.Line{Out: &out, Sample: j.sample}.Start()
		time.Sleep(time.Hour)
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			j.done.Add(100)
		}
		synctest.Wait()
		stop()
	})
	assert.Contains(t, out.String(), "3600.0s  0 of 100,000\n")
	assert.Regexp(t, `3620\.0s  (19,900|20,000) of 100,000, (990|1,000|1,010)/s, 1m2\ds left\n`, out.String())
}

func TestUnknownTotal(t *testing.T) {
	out := shown(t, progress.Line{Style: progress.Bar}, &job{rate: 5}, time.Second)
	assert.Equal(t, "5, 5.0/s", drawings(out)[9])
	assert.True(t, strings.HasSuffix(out, "\r5 in 1.0s, 5.0/s\n"), out)
}

// An estimate may be too low.
func TestLine_MoreThanTotal(t *testing.T) {
	out := shown(t, progress.Line{Style: progress.Bar}, &job{State: progress.State{Total: 10}, rate: 20}, time.Second)
	assert.Equal(t, "100 %  20 of 10, 20/s", drawings(out)[9])
}

func TestLineStart_Off(t *testing.T) {
	assert.Empty(t, shown(t, progress.Line{Style: progress.Off}, &job{}, time.Minute))
	assert.Panics(t, func() { progress.Line{Out: &bytes.Buffer{}, Sample: (&job{}).sample, Style: "loud"}.Start() })
	assert.Panics(t, func() { progress.Line{Out: &bytes.Buffer{}}.Start() })
	assert.Panics(t, func() { progress.Line{Sample: (&job{}).sample}.Start() })
}

// A regular file is not a terminal.
func TestFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	progress.Line{Out: f, Sample: (&job{}).sample}.Start()()
	require.NoError(t, f.Close())
	b, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	assert.Equal(t, "0 in 0.0s\n", string(b))
}

func TestOf_Operator(t *testing.T) {
	err := errors.New("late")
	s := progress.Of(observe.Stats{Completed: 5, Dropped: 2, HandedOver: 1, InFlight: 3, RetriesOnError: 4, RetriesOnResult: 5, LastError: err})
	assert.Equal(t, progress.State{Done: 8, Failed: 3, InFlight: 3, Retries: 9, LastError: err}, s)
}

// A fallback turns failures into results. These count as done, and also as failed.
func TestOf_RescuedElements(t *testing.T) {
	lookup := asyncop.Blocking(func(_ context.Context, in int) (string, error) {
		if in%3 == 0 {
			return "", errors.New("no row")
		}
		return "row", nil
	})
	fallback := func(_ context.Context, f asyncop.Failure[int]) ([]string, error) {
		if f.Element == 0 {
			return nil, f.Err // still a failure
		}
		return []string{f.Err.Error()}, nil
	}
	op := asyncop.OrderedWait(asyncop.HandleFailure(lookup, fallback), time.Hour, 4,
		asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	results := 0
	for _, err := range op.Results(slices.Values([]int{0, 1, 2, 3, 4, 5, 6})) {
		require.NoError(t, err)
		results++
	}
	require.Equal(t, 6, results)
	stats := op.Stats()
	assert.EqualValues(t, []int64{6, 1, 2}, []int64{stats.Completed, stats.Dropped, stats.Rescued})
	s := progress.Of(stats)
	assert.EqualValues(t, []int64{7, 3}, []int64{s.Done, s.Failed})
}

func TestLine_FailedElements(t *testing.T) {
	j := &job{State: progress.State{Total: 20_000, Failed: 1003}, rate: 1000}
	out := shown(t, progress.Line{What: "flights"}, j, 1500*time.Millisecond)
	assert.Equal(t, `  1.0s  1,000 of 20,000 flights, 1,003 failed, 1,000/s, 19s left
stopped at 1,500 of 20,000 flights after 1.5s, 1,003 failed, 1,000/s
`, out)
}

// A last error is shown with its age. The age comes first where the error may be cut.
func TestLine_AgeOfTheLastError(t *testing.T) {
	j := &job{State: progress.State{Total: 20_000, LastError: errors.New("region move"), LastErrorAge: 72 * time.Second}, rate: 1000}
	out := shown(t, progress.Line{}, j, 1500*time.Millisecond)
	assert.Equal(t, `  1.0s  1,000 of 20,000, 1,000/s, 19s left, region move 1m12s ago
stopped at 1,500 of 20,000 after 1.5s, 1,000/s, last error 1m12s ago: region move
`, out)
	all := drawings(shown(t, progress.Line{Style: progress.Bar}, j, 1500*time.Millisecond))
	assert.Equal(t, "  5 %  1,000 of 20,000, 1,000/s, 19s left, 1m12s ago: region move", all[9])
}

// Complete elements count as done while they wait for an older one.
func TestOf_CompleteElementsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			if in == 0 {
				time.Sleep(time.Minute)
			}
			if in == 5 {
				time.Sleep(time.Second)
				return 0, errors.New("trouble")
			}
			return in, nil
		}), time.Hour, 100, strategies.NoRetry[int](), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		go func() {
			for range op.Results(slices.Values([]int{0, 1, 2, 3, 4, 5})) {
			}
		}()
		time.Sleep(31 * time.Second)
		s := progress.Of(op.Stats())
		assert.EqualValues(t, 5, s.Done)
		assert.EqualValues(t, 1, s.InFlight)
		assert.EqualError(t, s.LastError, "trouble")
		assert.Equal(t, 30*time.Second, s.LastErrorAge)
		time.Sleep(time.Minute)
		s = progress.Of(op.Stats())
		assert.EqualValues(t, 6, s.Done)
		assert.Zero(t, s.InFlight)
	})
}

func TestStyleOn(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	for _, out := range []io.Writer{file, &bytes.Buffer{}} {
		require.Equal(t, progress.Plain, progress.Auto.On(out), "it is no terminal")
		require.Equal(t, progress.Plain, progress.Style("").On(out))
		require.Equal(t, progress.Bar, progress.Bar.On(out))
		require.Equal(t, progress.Off, progress.Off.On(out))
	}
}
