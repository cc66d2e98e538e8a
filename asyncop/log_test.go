package asyncop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// logBook is a logger that keeps its lines without their times.
type logBook struct {
	mu    sync.Mutex
	lines bytes.Buffer // guarded by mu
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.Write(p)
}

func (b *logBook) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// read returns the lines since its last call.
func (b *logBook) read() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := strings.TrimSuffix(b.lines.String(), "\n")
	b.lines.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// runToEnd sends elements to op, closes it and discards the results.
func runToEnd[IN, OUT any](op *AsyncWaitOperator[IN, OUT], elements ...IN) error {
	go func() {
		defer close(op.In())
		for _, e := range elements {
			op.In() <- e
		}
	}()
	for range op.Out() {
	}
	return op.Wait()
}

func failsAlways[IN any](err error) AsyncFunction[IN, int] {
	return Func(func(context.Context, IN, ResultFuture[int]) error { return err })
}

func retriesTwice() *strategies.FixedDelayStrategy[int] {
	return strategies.FixedDelay[int](2, time.Second).RetryIfException(predicates.HasException)
}

// Retries are logged at debug level, failed elements at warn level.
func TestLogLevels(t *testing.T) {
	retries := []string{
		`level=DEBUG msg="asyncop: retry" attempts=1 delay=1s reason=EXCEPTION_MATCHED error=down element=a operator=rows`,
		`level=DEBUG msg="asyncop: no retry" attempts=3 reason=EXCEPTION_MATCHED error=down no_retry=refused element=a operator=rows`,
	}
	const second = `level=DEBUG msg="asyncop: retry, and others for the same reason" attempts=2 delay=1s reason=EXCEPTION_MATCHED error=down retries=1 element=a operator=rows`
	dropped := `level=WARN msg="asyncop: element dropped" attempts=3 error=down no_retry=refused in_doubt=true element=a operator=rows`
	handed := `level=WARN msg="asyncop: element handed over to the failure sink" attempts=3 error=down no_retry=refused in_doubt=true element=a operator=rows`
	tests := []struct {
		name  string
		level slog.Level
		sink  bool
		want  []string
	}{
		{"dropped, debug", slog.LevelDebug, false, append(retries[:2:2], dropped, second)},
		{"failure sink, debug", slog.LevelDebug, true, append(retries[:2:2], handed, second)},
		{"dropped, info", slog.LevelInfo, false, []string{dropped}},
		{"failure sink, warn", slog.LevelWarn, true, []string{handed}},
		{"dropped, error", slog.LevelError, false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var book logBook
				policy := WithDropOnFailure()
				if tt.sink {
					policy = WithFailureSink(func(context.Context, Failure[string]) error { return nil })
				}
				op := OrderedWaitWithRetry(failsAlways[string](errDown), time.Minute, 5, retriesTwice(),
					policy, WithName("rows"), WithLogger(book.logger(tt.level)), WithDrainRetries())
				require.NoError(t, runToEnd(op, "a"))
				assert.Equal(t, tt.want, book.read())
			})
		})
	}
}

// breaksOnce is a failure sink that panics when it is called for the first time.
func breaksOnce() func(context.Context, Failure[int]) error {
	called := false
	return func(context.Context, Failure[int]) error {
		if !called {
			called = true
			panic(errDown)
		}
		return nil
	}
}

// The first of similar retries gets a line, and the others one line every ten seconds,
// like failed elements.
func TestWithLogger_RetriesThatAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		op := OrderedWaitWithRetry(failsAlways[int](errDown), time.Minute, 100, retriesTwice(),
			WithDropOnFailure(), WithLogger(book.logger(slog.LevelDebug)))
		defer func() { assert.NoError(t, op.Wait()) }()
		defer close(op.In())
		check := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, line := range book.read() {
				_, msg, _ := strings.Cut(line, `msg="asyncop: `)
				msg, attrs, _ := strings.Cut(msg, `"`)
				for _, number := range regexp.MustCompile(" (retries|elements)=[0-9]+").FindAllString(attrs, -1) {
					msg += number
				}
				got = append(got, msg)
			}
			assert.ElementsMatch(t, want, got, when)
		}
		for range 25 {
			op.In() <- 1
		}
		check("first attempts", "retry")
		time.Sleep(time.Second)
		check("second attempts")
		time.Sleep(time.Second)
		check("third and last attempts", "no retry", "element dropped")
		time.Sleep(8*time.Second - 1)
		check("within ten seconds")
		time.Sleep(1)
		check("after ten seconds", "retry, and others for the same reason retries=49", "75 of 75 attempts failed in the last 10s")
		time.Sleep(2 * time.Second)
		check("after twelve seconds", "no retry, and others for the same reason elements=24", "element dropped, and others for the same reason elements=24")
		time.Sleep(time.Hour)
		check("after an hour")
		op.In() <- 1
		check("another element", "retry")
		time.Sleep(2 * time.Second)
		check("its end", "no retry", "element dropped")
	})
}

// The end of the operator does not wait for the period: lines that are still suppressed
// are written then.
func TestSuppressedLinesAtTheEnd(t *testing.T) {
	for name, opts := range map[string][]Option{"clean": nil, "failure": {WithName("rows")}} {
		synctest.Test(t, func(t *testing.T) {
			var book logBook
			opts := append(opts, WithDropOnFailure(), WithLogger(book.logger(slog.LevelInfo)))
			op := OrderedWait(failsAlways[int](errDown), time.Minute, 100, opts...)
			if name == "failure" {
				for range 102 {
					op.In() <- 1
				}
				op.In() <- "a string"
				close(op.In())
				require.Error(t, op.Wait())
			} else {
				require.NoError(t, runToEnd(op, make([]int, 100)...))
			}
			lines := book.read()
			assert.True(t, strings.HasPrefix(lines[0], `level=WARN msg="asyncop: element dropped"`), lines[0])
			const others = `level=WARN msg="asyncop: element dropped, and others for the same reason" attempts=1 error=down in_doubt=true elements=`
			if name == "clean" {
				assert.Equal(t, []string{others + `99 element=0`}, lines[1:])
			} else {
				assert.Equal(t, others+`101 element=1 operator=rows`, lines[1])
			}
		})
	}
}

// The first of similar failures gets a line, and the others one line every ten seconds.
// Failures of another kind get their own lines.
func TestLinesOfFailuresThatAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		fn := Blocking(func(_ context.Context, in int) (int, error) {
			if in < 0 {
				return 0, fmt.Errorf("%q is no city", "city"+strconv.Itoa(in))
			}
			return 0, fmt.Errorf("no answer of 10.0.0.%d", in)
		})
		op := OrderedWait(fn, time.Minute, 100, WithDropOnFailure(), WithLogger(book.logger(slog.LevelInfo)))
		read := func() (lines []string) {
			synctest.Wait()
			for _, line := range book.read() {
				if strings.Contains(line, "element") {
					lines = append(lines, line)
				}
			}
			return lines
		}
		op.In() <- 1
		synctest.Wait()
		op.In() <- -1
		require.Equal(t, []string{
			`level=WARN msg="asyncop: element dropped" attempts=1 error="no answer of 10.0.0.1" in_doubt=true element=1`,
			`level=WARN msg="asyncop: element dropped" attempts=1 error="\"city-1\" is no city" in_doubt=true element=-1`,
		}, read())
		for i := range 50 {
			op.In() <- i + 2
			synctest.Wait()
			time.Sleep(150 * time.Millisecond)
		}
		require.Empty(t, read())
		time.Sleep(3 * time.Second)
		const others = `level=WARN msg="asyncop: element dropped, and others for the same reason" attempts=1 error="no answer of 10.0.0.`
		require.Equal(t, []string{others + `51" in_doubt=true elements=50 element=51`}, read())
		op.In() <- 7
		require.Empty(t, read())
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{others + `7" in_doubt=true elements=1 element=7`}, read())
		time.Sleep(11 * time.Second)
		op.In() <- 8
		require.Len(t, read(), 1, "at once, after some time")
		close(op.In())
		require.NoError(t, op.Wait())

		groups := op.Groups()
		require.Len(t, groups, 2)
		require.Equal(t, []int64{53, 1}, []int64{groups[0].Count, groups[1].Count})
		require.Equal(t, "no answer of #", groups[0].Error)
		require.Equal(t, "no answer of 10.0.0.8", groups[0].ExampleText)
		require.Equal(t, "# is no city", groups[1].Error)
		require.True(t, groups[0].First.Before(groups[0].Last))
	})
}

// While a failure sink is unavailable, each element is offered repeatedly. Offers that
// fail for the same reason get one line every ten seconds, with their number.
func TestWithFailureSink_LinesWhileItIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		offers, isUp := 0, false
		op := UnorderedWait(failsAlways[int](errDown), time.Minute, 100, WithLogger(book.logger(slog.LevelInfo)),
			WithFailureSink(func(context.Context, Failure[int]) error {
				if isUp {
					return nil
				}
				offers++
				return fmt.Errorf("no connection to 10.0.0.%d", offers)
			}))
		for i := range 50 {
			op.In() <- i
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		isUp = true
		close(op.In())
		require.NoError(t, op.Wait())

		const msg = `level=WARN msg="asyncop: the failure sink did not take an element`
		lines, counted := 0, 0
		for _, line := range book.read() {
			if !strings.HasPrefix(line, msg) {
				continue
			}
			lines++
			_, n, isGroup := strings.Cut(line, " offers=")
			if !isGroup {
				counted++
				continue
			}
			require.Contains(t, line, msg+`, and others for the same reason" error="no connection to 10.0.0.`)
			number, err := strconv.Atoi(strings.Fields(n)[0])
			require.NoError(t, err)
			counted += number
		}
		require.Greater(t, offers, 500)
		require.LessOrEqual(t, lines, 8)
		require.Equal(t, offers, counted)
	})
}

// A storm of failures, even of different kinds, is bounded in memory, time and lines.
func TestGroupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		fn := Blocking(func(_ context.Context, in int) (int, error) {
			return 0, errors.New(strings.Map(func(r rune) rune { return r - '0' + 'a' }, strconv.Itoa(in)))
		})
		op := OrderedWait(fn, time.Minute, 100, WithDropOnFailure(), WithLogger(book.logger(slog.LevelInfo)))
		for i := range 2000 {
			op.In() <- i
		}
		synctest.Wait()
		require.LessOrEqual(t, len(book.read()), mostLineGroups+1)
		close(op.In())
		require.NoError(t, op.Wait())
		groups := op.Groups()
		require.LessOrEqual(t, len(groups), 101)
		sum := int64(0)
		for _, g := range groups {
			sum += g.Count
		}
		require.EqualValues(t, 2000, sum)
		require.GreaterOrEqual(t, groups[len(groups)-1].Count, int64(1900))
	})
}

// Failures that the sink does not take at the end are named in the log. Elements that
// were cut off may be declined, and are not logged.
func TestLostFailuresAreNamed(t *testing.T) {
	for _, tt := range []struct {
		level slog.Level
		lost  int
	}{{slog.LevelInfo, 1}, {slog.LevelInfo, 3}, {slog.LevelDebug, 3}, {slog.LevelError, 3}, {slog.LevelInfo, 15}} {
		synctest.Test(t, func(t *testing.T) {
			var book logBook
			ctx, cancel := context.WithCancel(t.Context())
			op := UnorderedWait(Func(func(_ context.Context, in int, result ResultFuture[int]) error {
				if in > 0 {
					return errDown
				}
				return nil // hangs
			}), time.Hour, 100, WithContext(ctx), WithLogger(book.logger(tt.level)),
				WithFailureSink(func(context.Context, Failure[int]) error { return errDown }))
			for range 20 {
				op.In() <- 0
			}
			for i := range tt.lost {
				op.In() <- i + 1
			}
			synctest.Wait()
			cancel()
			close(op.In())
			<-op.Done()
			lines := strings.Join(book.read(), "\n")
			const msg = `level=ERROR msg="asyncop: the failure sink did not take an element at the end`
			assert.Equal(t, 1, strings.Count(lines, msg+`"`), lines)
			assert.Contains(t, lines, fmt.Sprintf(`level=ERROR msg="asyncop: the failure sink has not taken all failures: they are lost" lost=%d`, tt.lost))
			others := 0
			if tt.lost > 1 {
				others = 1
				assert.Contains(t, lines, fmt.Sprintf(` elements=%d `, tt.lost-1))
			}
			assert.Equal(t, others, strings.Count(lines, msg+`, and others for the same reason"`), lines)
		})
	}
}

// An outage is logged in its own line, once every ten seconds, with the last error. A
// small share of failures is not logged.
func TestFailingAttemptsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		var down atomic.Bool
		down.Store(true)
		refused := errors.New("connection refused")
		calls := 0
		op := OrderedWaitWithRetry(Blocking(func(context.Context, int) (int, error) {
			calls++
			time.Sleep(time.Millisecond)
			if down.Load() || calls%11 == 0 {
				return 0, refused
			}
			return 1, nil
		}), time.Hour, 4, strategies.FixedDelay[int](1_000_000, 99*time.Millisecond).RetryIfException(predicates.HasException),
			WithLogger(book.logger(slog.LevelInfo)), WithName("rows"), WithMaxConcurrentCalls(1))
		go func() {
			for range op.Out() {
			}
		}()
		for range 4 {
			op.In() <- 1
		}
		time.Sleep(9 * time.Second)
		assert.Empty(t, book.read())
		time.Sleep(12 * time.Second)
		synctest.Wait()
		lines := book.read()
		require.Len(t, lines, 2)
		for _, line := range lines {
			assert.Regexp(t, `^level=WARN msg="asyncop: 40[01] of 40[01] attempts failed in the last 10s" last="connection refused" operator=rows$`, line)
		}
		require.ErrorIs(t, op.Stats().LastError, refused)

		down.Store(false)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		book.read() // the line about the rest of the outage
		for range 10_000 {
			op.In() <- 1
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		assert.Empty(t, book.read(), "one in eleven")
		close(op.In())
		require.NoError(t, op.Wait())
	})
}

func TestDefaultLabel(t *testing.T) {
	type (
		row    struct{ Secret string }
		number int32
		name   string
	)
	var nilRow *row
	long := strings.Repeat("x", maxLabel)
	tests := []struct {
		element any
		want    string
	}{
		{nil, "<nil>"},
		{"", `""`},
		{"LHR", `"LHR"`},
		{name("Ann"), `"Ann"`},
		{"two\nlines", `"two\nlines"`},
		{long, `"` + long + `"`},
		{long + "y", `"` + long + `"…`},
		{long[1:] + "é", `"` + long[1:] + `"…`}, // no rune is cut in two
		{strings.Repeat("\x80", maxLabel+1), `""…`},
		{42, "42"},
		{number(-7), "-7"},
		{uint8(7), "7"},
		{1.5, "1.5"},
		{true, "true"},
		{complex(1, 2), "(1+2i)"},
		{row{"s3cret"}, "of type asyncop.row"},
		{&row{"s3cret"}, "of type *asyncop.row"},
		{nilRow, "of type *asyncop.row"},
		{[]string{"s3cret"}, "of type []string"},
		{[]byte("s3cret"), "of type []uint8"},
		{map[string]int{"s3cret": 1}, "of type map[string]int"},
		{errors.New("s3cret"), "of type *errors.errorString"},
		{time.Second, "1s"}, // a number with a String method
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, defaultLabel(tt.element, true))
	}
}

// Complete records belong neither in logs nor in the message of an error.
func TestLogsTellNoSecrets(t *testing.T) {
	type patient struct{ Name, Diagnosis string }
	ann := patient{"Ann", "s3cret"}
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]Option{nil, {WithDropOnFailure()}} {
			var book logBook
			opts = append(opts, WithLogger(book.logger(slog.LevelDebug)))
			op := OrderedWaitWithRetry(failsAlways[patient](errDown), time.Minute, 5, retriesTwice(), opts...)
			err := runToEnd(op, ann)
			lines := strings.Join(book.read(), "\n")
			assert.Contains(t, lines, `element="of type asyncop.patient"`)
			assert.NotContains(t, lines, "s3cret")
			if e, ok := errors.AsType[*ElementError](err); ok {
				assert.NotContains(t, err.Error(), "s3cret")
				assert.Contains(t, err.Error(), "element of type asyncop.patient failed")
				assert.Equal(t, ann, e.Element)
			}
		}
	})
}

// patientNumber is an element that labels itself in logs and errors.
type patientNumber int

var labels atomic.Int64

func (p patientNumber) LogValue() slog.Value {
	labels.Add(1)
	return slog.StringValue(fmt.Sprintf("patient-%d", int(p)))
}

func TestElementLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		op := OrderedWaitWithRetry(failsAlways[patientNumber](errDown), time.Minute, 5, retriesTwice(),
			WithLogger(book.logger(slog.LevelDebug)), WithDrainRetries())
		err := runToEnd(op, patientNumber(7))
		assert.EqualError(t, err, "asyncop: element patient-7 failed after 3 attempts in 2s, 2 of 2 retries used: down")
		lines := book.read()
		require.Greater(t, len(lines), 1)
		for _, line := range lines[:len(lines)-1] { // the last one has the error
			isShared := strings.Contains(line, "and others")
			assert.Equal(t, !isShared, strings.HasSuffix(line, `element=patient-7`), line)
			assert.Equal(t, !isShared, strings.Contains(line, "element="), line)
		}
	})
}

// A label is made only for a line that is written or a timeline that is kept.
func TestElementLabelIsMadeForLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		op := OrderedWaitWithRetry(failsAlways[patientNumber](errDown), time.Minute, 50, retriesTwice(),
			WithDropOnFailure(), WithLogger(book.logger(slog.LevelWarn)), WithDrainRetries())
		before := labels.Load()
		require.NoError(t, runToEnd(op, make([]patientNumber, 40)...))
		assert.Len(t, book.read(), 2) // and one line for the others, without a label
		assert.Len(t, op.Timelines(), 10)
		assert.EqualValues(t, 1+10, labels.Load()-before)
	})
}

// lentOrder is an element that belongs to the consumer when it was emitted.
type lentOrder struct {
	isEmitted bool
	labels    *[]bool // isEmitted at each call of LogValue
}

func (o *lentOrder) LogValue() slog.Value {
	*o.labels = append(*o.labels, o.isEmitted)
	return slog.StringValue("order")
}

// Lines about several retries are written after the elements were emitted: then LogValue
// may not be called, because the consumer may be changing the element.
func TestElementLabel_AfterEmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		calls := map[*lentOrder]int{}
		op := OrderedWaitWithRetry(Func(func(_ context.Context, o *lentOrder, result ResultFuture[*lentOrder]) error {
			calls[o]++
			if calls[o] == 1 {
				result.CompleteExceptionally(errDown)
			} else {
				result.Complete(o)
			}
			return nil
		}), time.Minute, 10, strategies.FixedDelay[*lentOrder](2, time.Second).RetryIfException(predicates.HasException), WithLogger(book.logger(slog.LevelDebug)))
		var labels []bool
		for o, err := range op.Results(slices.Values([]*lentOrder{{labels: &labels}, {labels: &labels}, {labels: &labels}})) {
			require.NoError(t, err)
			o.isEmitted = true
		}
		require.Equal(t, []bool{false}, labels, "the first retry")
		require.Contains(t, strings.Join(book.read(), "\n"), "retry, and others for the same reason")
	})
}

// unnameable is an element whose label panics.
type unnameable int

func (unnameable) LogValue() slog.Value { panic("no label") }

func TestElementLabelThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := OrderedWait(failsAlways[unnameable](errDown), 0, 5)
		assert.Equal(t, "asyncop: element (label: asyncop: panic in user code: no label "+
			"(at log_test.go:N asyncop.unnameable.LogValue)) failed after 1 attempt in 0s: down",
			withoutLine(runToEnd(op, unnameable(1)).Error()))
	})
}

// withoutLine replaces the line numbers of test files in text by N.
func withoutLine(text string) string { return placeLine.ReplaceAllString(text, "_test.go:N ") }

var placeLine = regexp.MustCompile(`_test\.go:\d+ `)

// An operator that fails is logged once, at error level, before Out closes, because the
// program may not call Wait. A cancel is expected and not an error.
func TestLogOfTheEnd(t *testing.T) {
	fails := func(e any) func(t *testing.T, op *AsyncWaitOperator[int, int], cancel context.CancelCauseFunc) {
		return func(_ *testing.T, op *AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
			op.In() <- e
			close(op.In())
		}
	}
	const failed, cancelled = `level=ERROR msg="asyncop: operator failed" error=`, `level=INFO msg="asyncop: operator cancelled" error=`
	tests := []struct {
		name string
		opts []Option
		end  func(t *testing.T, op *AsyncWaitOperator[int, int], cancel context.CancelCauseFunc) // or drives it by Results
		want []string
	}{
		{"clean", nil, fails(1), nil},
		{"element", nil, fails(-1), []string{failed + `"asyncop: rows: element -1 failed after 1 attempt in 0s: down" operator=rows`}},
		{"wrong type", nil, fails(""), []string{
			failed + `"asyncop: rows: got an element of type string, want int" operator=rows`,
			`level=WARN msg="asyncop: elements came after the operator had ended early, and were discarded" elements=1 operator=rows`,
		}},
		{
			"failure sink",
			[]Option{WithFailureSink(breaksOnce())},
			fails(-1),
			[]string{
				`level=WARN msg="asyncop: the failure sink did not take an element" error="asyncop: panic in user code: down FRAME`,
				`level=WARN msg="asyncop: element handed over to the failure sink" attempts=1 error=down in_doubt=true element=-1 operator=rows`,
			},
		},
		{
			"context", nil, func(_ *testing.T, op *AsyncWaitOperator[int, int], cancel context.CancelCauseFunc) {
				op.In() <- 0 // hangs
				synctest.Wait()
				cancel(errDown)
				close(op.In())
			}, []string{cancelled + `"asyncop: ended with 1 element in flight: down" operator=rows`},
		},
		{
			"Stop", nil, func(_ *testing.T, op *AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
				op.In() <- 0
				synctest.Wait()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = op.Stop(ctx)
				close(op.In())
			}, []string{cancelled + `"asyncop: ended with 1 element in flight: asyncop: operator stopped: context deadline exceeded" operator=rows`},
		},
		{
			"Results", nil, func(t *testing.T, op *AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
				for range op.Results(slices.Values([]int{-1})) { // without the error
				}
			}, []string{failed + `"asyncop: rows: element -1 failed after 1 attempt in 0s: down" operator=rows`},
		},
		{
			"input of Results", nil, func(t *testing.T, op *AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
				for range op.Results(func(func(int) bool) { panic(errDown) }) {
				}
			}, []string{failed + `"asyncop: input of Results: asyncop: panic in user code: down FRAME`},
		},
		{
			"break", nil, func(t *testing.T, op *AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
				for range op.Results(slices.Values([]int{1, 0})) {
					break
				}
			}, nil,
		},
		{
			"panic", nil, func(t *testing.T, op *AsyncWaitOperator[int, int], _ context.CancelCauseFunc) {
				op.In() <- -2
				close(op.In())
			}, []string{failed + `"asyncop: rows: element -2 failed after 1 attempt in 0s: asyncop: panic in user code: down FRAME`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var book logBook
				ctx, cancel := context.WithCancelCause(t.Context())
				fn := Func(func(_ context.Context, in int, result ResultFuture[int]) error {
					switch in {
					case -2:
						panic(errDown)
					case -1:
						return errDown
					case 0: // hangs
					default:
						result.Complete(in)
					}
					return nil
				})
				op := OrderedWait(fn, time.Minute, 5,
					append(tt.opts, WithName("rows"), WithContext(ctx), WithLogger(book.logger(slog.LevelInfo)))...)
				tt.end(t, op, cancel)
				for range op.driver.Out() { // closed
				}
				lines := book.read()
				<-op.Done()
				synctest.Wait() // discarded elements are logged once In has closed
				late := book.read()
				if tt.name == "wrong type" {
					lines = append(lines, late...)
				} else {
					assert.Empty(t, late)
				}
				require.Len(t, lines, len(tt.want), lines)
				slices.Sort(lines) // the loop and the handler's goroutine write in any order
				slices.Sort(tt.want)
				for i, want := range tt.want {
					want, panicked := strings.CutSuffix(want, "FRAME")
					if !panicked {
						assert.Equal(t, want, lines[i])
						continue
					}
					assert.True(t, strings.HasPrefix(lines[i], want+"(at log_test.go:"), lines[i])
					assert.Equal(t, 1, strings.Count(lines[i], "runtime/debug.Stack()"), lines[i])
					assert.Contains(t, lines[i], ` stack="goroutine `)
				}
			})
		})
	}
}

// However a handler formats errors, the stack is written once.
func TestLogOfAPanic(t *testing.T) {
	var text, json bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&text, nil), slog.NewJSONHandler(&json, nil)} {
		op := OrderedWait(Func(func(context.Context, int, ResultFuture[int]) error { panic("boom") }), 0, 1,
			WithDropOnFailure(), WithLogger(slog.New(h)))
		require.NoError(t, runToEnd(op, 1))
	}
	for _, b := range []string{text.String(), json.String()} {
		assert.Contains(t, b, "asyncop: panic in user code: boom (at log_test.go:")
		assert.Equal(t, 1, strings.Count(b, "runtime/debug.Stack()"), b)
		assert.Contains(t, b, "stack")
	}
}

// An error of Close must not replace the failure, so it is logged.
func TestLogOfCloseAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		op := OrderedWait(badCloser{failsAlways[int](errDown)}, 0, 5, WithName("rows"), WithLogger(book.logger(slog.LevelInfo)))
		assert.ErrorIs(t, runToEnd(op, 1), errDown)
		assert.Equal(t, []string{
			`level=ERROR msg="asyncop: operator failed" error="asyncop: rows: element 1 failed after 1 attempt in 0s: down" operator=rows`,
			`level=WARN msg="asyncop: close after a failure" error="asyncop: close: still open" operator=rows`,
		}, book.read())
	})
}

type badCloser struct {
	AsyncFunction[int, int]
}

func (badCloser) Close() error { return errors.New("still open") }

// Law A6: a handler whose Enabled breaks has no other effect. Enabled is not called for
// every retry.
func TestLoggerThatBreaksWhenAsked(t *testing.T) {
	for name, breaks := range map[string]func(){
		"panic":  func() { panic("no level") },
		"goexit": runtime.Goexit,
		"no":     func() {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &askedHandler{Handler: slog.DiscardHandler, breaks: breaks}
				op := OrderedWaitWithRetry(failsAlways[int](errDown), time.Hour, 10,
					strategies.FixedDelay[int](100, time.Millisecond).RetryIfException(predicates.HasException),
					WithDropOnFailure(), WithDrainRetries(), WithLogger(slog.New(h)))
				require.NoError(t, runToEnd(op, 1, 2))
				assert.EqualValues(t, 2, op.Stats().Dropped)
				assert.LessOrEqual(t, h.debug.Load(), int32(2))
			})
		})
	}
}

type askedHandler struct {
	slog.Handler
	breaks func()
	debug  atomic.Int32
}

func (h *askedHandler) Enabled(_ context.Context, level slog.Level) bool {
	if level == slog.LevelDebug {
		h.debug.Add(1)
	}
	h.breaks()
	return false
}

// A strategy without any predicate never retries, and the constructor logs a warning.
func TestWarningOfAStrategyThatNeverRetries(t *testing.T) {
	bare := strategies.FixedDelay[int](3, time.Second)
	aware := strategies.ReasonAware(predicates.ByException[int](predicates.HasException, predicates.Unknown), nil)
	tests := []struct {
		name     string
		strategy strategies.Retry[int]
		want     string // the strategy that the warning names, or "" for no warning
	}{
		{"no predicate", bare, "*strategies.FixedDelayStrategy[int]"},
		{"as a policy", strategies.PolicyOf(bare), "*strategies.Policy[int]"},
		{"behind an interface", struct {
			strategies.AsyncRetryStrategy[int]
		}{bare}, `"struct { strategies.AsyncRetryStrategy[int] }"`},
		{"no retry", strategies.NoRetry[int](), ""},
		{"no retry as a policy", strategies.PolicyOf(strategies.NoRetry[int]()), ""},
		{"on errors", bare.RetryIfException(predicates.HasException), ""},
		{"on results", bare.RetryIfResult(predicates.EmptyResult), ""},
		{"with reasons", aware, ""},
		{"with reasons, errors only", aware.ErrorsOnly(), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var book logBook
				op := UnorderedWaitWithRetry(failsAlways[int](errDown), time.Minute, 5, tt.strategy,
					WithName("rows"), WithLogger(book.logger(slog.LevelInfo)))
				var want []string
				if tt.want != "" {
					want = []string{`level=WARN msg="asyncop: UnorderedWaitWithRetry: the strategy has no predicate, so nothing is retried: ` +
						`give it RetryIfResult or RetryIfException, or use NoRetry" strategy=` + tt.want + " operator=rows"}
				}
				assert.Equal(t, want, book.read())
				require.NoError(t, runToEnd(op))
			})
		})
	}
}

// Without limits, the clock is not read for each element.
func TestClockIsNotReadForEachElement(t *testing.T) {
	elements := make([]int, 100)
	synctest.Test(t, func(t *testing.T) {
		c := &countingClock{Clock: clock.New()}
		op := OrderedWait(Func(func(_ context.Context, in int, result ResultFuture[int]) error {
			result.Complete(in)
			return nil
		}), 0, 1000, WithClock(c))
		time.Sleep(time.Second)
		before := c.readings.Load()
		for _, err := range op.ResultsOf(FromSlice(elements)) {
			require.NoError(t, err)
		}
		assert.Less(t, c.readings.Load()-before, int64(30))
	})
}

// countingClock counts its reads.
type countingClock struct {
	clock.Clock
	readings atomic.Int64
}

func (c *countingClock) Since(t time.Time) time.Duration {
	c.readings.Add(1)
	return c.Clock.Since(t)
}

// A line about a message has the id and the visit of the message, because its type does
// not identify it.
func TestLogNamesMessage(t *testing.T) {
	type mail struct{ to string }
	for name, constructor := range map[string]func(AsyncFunction[mail, int], time.Duration, int, ...Option) *AsyncWaitOperator[mail, int]{
		"ordered": OrderedWait[mail, int], "unordered": UnorderedWait[mail, int],
	} {
		t.Run(name, func(t *testing.T) {
			var book logBook
			op := constructor(failsAlways[mail](errors.New("busy")), time.Second, 10, WithLogger(book.logger(slog.LevelInfo)),
				WithFailureSink(func(context.Context, Failure[mail]) error { return nil }))
			in := []message.Message[mail]{
				message.New(mail{"a"}, &message.Meta{ID: "mail-7", Visit: 2}, func(message.Settlement) {}),
				message.New(mail{"b"}, nil, func(message.Settlement) {}),
			}
			input := func(yield func(message.Message[mail], error) bool) {
				for _, m := range in {
					if !yield(m, nil) {
						return
					}
				}
			}
			for m, err := range op.Messages(input) {
				t.Errorf("a result: %v, %v", m, err)
			}
			lines := strings.Join(book.read(), "\n")
			require.Equal(t, 2, strings.Count(lines, "element handed over"), lines)
			require.Contains(t, lines, `element="of type asyncop.mail" id=mail-7 visit=2`)
			require.Equal(t, 1, strings.Count(lines, " id="), "one has none: %s", lines)
		})
	}
}

// Groups of failures beyond those with their own lines share a group, and make room for
// others later.
func TestWithLogger_VeryManyGroups(t *testing.T) {
	for _, groups := range []int{mostLineGroups - 1, mostLineGroups, mostLineGroups + 1, 3 * mostLineGroups} {
		synctest.Test(t, func(t *testing.T) {
			var book logBook
			word := func(n int) string { return string([]byte{'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/26/26)}) }
			op := OrderedWait(Blocking(func(_ context.Context, in int) (int, error) { return 0, errors.New("no user " + word(in)) }),
				time.Minute, 4, WithDropOnFailure(), WithLogger(book.logger(slog.LevelInfo)))
			total := 0
			send := func(in int) {
				op.In() <- in
				total++
			}
			failures := func(lines []string) (n int) {
				for _, line := range lines {
					number := regexp.MustCompile(" (?:elements|failures)=([0-9]+)").FindStringSubmatch(line)
					switch {
					case strings.Contains(line, "attempts failed"):
					case number == nil:
						n++
					default:
						others, err := strconv.Atoi(number[1])
						require.NoError(t, err)
						n += others
					}
				}
				return n
			}
			for i := range groups {
				send(i)
			}
			for i := range 100 {
				send(i % 5)
			}
			synctest.Wait()
			first := book.read()
			require.LessOrEqual(t, len(first), mostLineGroups+1, "lines in the first second")
			time.Sleep(time.Minute)
			later := book.read()
			require.LessOrEqual(t, len(later), 7, "five groups, the others, and the failing attempts")
			require.Equal(t, total, failures(first)+failures(later), "each failure has a line or is counted")
			for i := range groups {
				send(groups + i)
			}
			close(op.In())
			require.NoError(t, op.Wait())
			last := book.read()
			require.Contains(t, strings.Join(last, "\n"), "no user "+word(groups), "there is room for another group")
			require.Equal(t, total, failures(first)+failures(later)+failures(last))
		})
	}
}
