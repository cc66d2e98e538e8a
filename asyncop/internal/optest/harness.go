package optest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type Mode struct {
	Ordered  bool
	Capacity int
	Mock     bool // the operator uses a clock.Mock
}

func (m Mode) String() string {
	s := fmt.Sprintf("%s/capacity=%d", m.Order(), m.Capacity)
	if m.Mock {
		s += "/mock"
	}
	return s
}

func (m Mode) Order() string {
	if m.Ordered {
		return "ordered"
	}
	return "unordered"
}

func (m Mode) Pick(ordered, unordered string) string {
	if m.Ordered {
		return ordered
	}
	return unordered
}

const defaultCapacity = 16

// ForEachMode runs body in a bubble for both orders and each capacity.
func ForEachMode(t *testing.T, body func(t *testing.T, m Mode), capacities ...int) {
	t.Helper()
	if len(capacities) == 0 {
		capacities = []int{defaultCapacity}
	}
	for _, capacity := range capacities {
		for _, ordered := range []bool{true, false} {
			InBubble(t, Mode{Ordered: ordered, Capacity: capacity}, body)
		}
	}
}

// ForEachClock runs body like ForEachMode, with and without a clock.Mock.
func ForEachClock(t *testing.T, body func(t *testing.T, m Mode)) {
	t.Helper()
	for _, mock := range []bool{false, true} {
		for _, ordered := range []bool{true, false} {
			InBubble(t, Mode{Ordered: ordered, Capacity: defaultCapacity, Mock: mock}, body)
		}
	}
}

func InBubble(t *testing.T, m Mode, body func(t *testing.T, m Mode)) {
	t.Helper()
	t.Run(m.String(), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { body(t, m) })
	})
}

type Operator = asyncop.AsyncWaitOperator[string, string]

type Function = asyncop.AsyncFunction[string, string]

type Future = asyncop.ResultFuture[string]

type Strategy = strategies.Retry[string]

type Failure = asyncop.Failure[string]

var ErrBroken = errors.New("broken")

var ErrTestOver = errors.New("the test is over")

// RetryAll retries errors and empty results, up to maxRetries times, after delay.
func RetryAll(maxRetries int, delay time.Duration) *strategies.FixedDelayStrategy[string] {
	return RetryAllOf[string](maxRetries, delay)
}

func RetryAllOf[OUT any](maxRetries int, delay time.Duration) *strategies.FixedDelayStrategy[OUT] {
	return strategies.FixedDelay[OUT](maxRetries, delay).
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException)
}

// Construct calls the constructor of the mode and the strategy.
func Construct[IN, OUT any](
	m Mode, fn asyncop.AsyncFunction[IN, OUT], timeout time.Duration,
	s strategies.Retry[OUT], opts ...asyncop.Option,
) *asyncop.AsyncWaitOperator[IN, OUT] {
	switch {
	case s == nil && m.Ordered:
		return asyncop.OrderedWait(fn, timeout, m.Capacity, opts...)
	case s == nil:
		return asyncop.UnorderedWait(fn, timeout, m.Capacity, opts...)
	case m.Ordered:
		return asyncop.OrderedWaitWithRetry(fn, timeout, m.Capacity, s, opts...)
	default:
		return asyncop.UnorderedWaitWithRetry(fn, timeout, m.Capacity, s, opts...)
	}
}

// Setup has the options of a rig's operator.
type Setup struct {
	Timeout  time.Duration
	Strategy Strategy
	Key      func(string) string  // makes the operator key-ordered; Mode.Ordered has no effect then
	Wrap     func(*Hand) Function // wraps the Hand
	Blocked  bool                 // downstream does not read before Unblock
	Opts     []asyncop.Option
	State    asyncop.State[string, string] // of a CheckRig
}

func Options(opts ...asyncop.Option) []asyncop.Option { return opts }

// Rig is an operator of strings under test.
type Rig struct {
	*Hand
	T      *testing.T
	Op     *Operator
	Mock   *clock.Mock // nil unless the mode has one
	Cancel context.CancelCauseFunc

	EndInputOnce, readOnce func()
	startReading           chan struct{}
	Read                   chan struct{} // closed after Out was closed

	mu      sync.Mutex
	out     []string // guarded by mu: outputs with their times
	ErrAtEO error    // guarded by mu: the run's error after Out was closed
}

func NewRig(t *testing.T, m Mode, s Setup) *Rig {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), ValueKey{}, "of the operator"))
	r := &Rig{T: t, Hand: NewHand(t), Cancel: cancel, startReading: make(chan struct{}), Read: make(chan struct{})}
	// In buffers the elements that a test sends at once.
	opts := Options(asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithBuffer(rigBuffer))
	if m.Mock {
		r.Mock = clock.NewMock()
		r.Hand.clock = r.Mock
		r.Hand.Start = r.Mock.Now()
		opts = append(opts, asyncop.WithClock(r.Mock))
	}
	var fn Function = r.Hand
	if s.Wrap != nil {
		fn = s.Wrap(r.Hand)
	}
	opts = append(opts, s.Opts...)
	switch {
	case s.Key == nil:
		r.Op = Construct(m, fn, s.Timeout, s.Strategy, opts...)
	case s.Strategy == nil:
		r.Op = asyncop.KeyOrderedWait(fn, s.Key, s.Timeout, m.Capacity, nil, opts...)
	default:
		r.Op = asyncop.KeyOrderedWait(fn, s.Key, s.Timeout, m.Capacity, s.Strategy, opts...)
	}
	r.EndInputOnce = sync.OnceFunc(func() { close(r.Op.In()) })
	r.readOnce = sync.OnceFunc(func() { close(r.startReading) })
	go r.reader()
	if !s.Blocked {
		r.Unblock()
	}
	t.Cleanup(func() {
		cancel(ErrTestOver)
		r.Unblock()
		r.EndInputOnce()
		<-r.Op.Done()
	})
	return r
}

const rigBuffer = 128

type ValueKey struct{}

func (r *Rig) reader() {
	<-r.startReading
	for v := range r.Op.Out() {
		r.mu.Lock()
		r.out = append(r.out, fmt.Sprintf("%s@%v", Text(v), r.Now()))
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.ErrAtEO = r.Op.Err()
	r.mu.Unlock()
	close(r.Read)
}

func (r *Rig) Unblock() { r.readOnce() }

// Text returns an element as a history shows it.
func Text(v any) string {
	switch v := v.(type) {
	case asyncop.Watermark:
		return fmt.Sprintf("|%d|", v.Timestamp.Unix())
	default:
		return fmt.Sprint(v)
	}
}

func Mark(seconds int64) asyncop.Watermark {
	return asyncop.Watermark{Timestamp: time.Unix(seconds, 0)}
}

// Send feeds elements and waits until the operator is idle.
func (r *Rig) Send(elements ...any) {
	for _, e := range elements {
		r.Op.In() <- e
	}
	synctest.Wait()
}

func (r *Rig) SendEach(s string) {
	for _, e := range s {
		r.Op.In() <- string(e)
	}
	synctest.Wait()
}

func (r *Rig) EndInput() {
	r.EndInputOnce()
	synctest.Wait()
}

// Advance lets time pass. A mock waits, after firing a timer, until the operator is idle,
// so a large step is exact.
func (r *Rig) Advance(d time.Duration) {
	if r.Mock != nil {
		r.Mock.Add(d)
	} else {
		time.Sleep(d)
	}
	synctest.Wait()
}

// End ends the input and returns the error of the run.
func (r *Rig) End() error {
	r.EndInputOnce()
	return r.Wait()
}

// Wait returns the error of the run at its end.
func (r *Rig) Wait() error {
	r.Unblock()
	<-r.Read
	err := r.Op.Wait()
	synctest.Wait()
	return err
}

// Cut ends the operator by its context and returns the error of the run.
func (r *Rig) Cut(cause error) error {
	r.Cancel(cause)
	synctest.Wait()
	return r.Wait()
}

// Outputs returns a text such as "A B |1| C".
func (r *Rig) Outputs() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for i, o := range r.out {
		if i > 0 {
			b.WriteByte(' ')
		}
		text, _, _ := strings.Cut(o, "@")
		b.WriteString(text)
	}
	return b.String()
}

// OutputTimes returns a text such as "A@1s B@1s".
func (r *Rig) OutputTimes() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.out, " ")
}

// TimeOutIn checks that n elements time out after d, and not earlier.
func (r *Rig) TimeOutIn(d time.Duration, n int) {
	r.T.Helper()
	r.Advance(d - 1)
	require.Zero(r.T, r.Stats().Timeouts)
	r.Advance(1)
	require.EqualValues(r.T, n, r.Stats().Timeouts)
}

// Stats returns counts without the counts that have their own tests.
func (r *Rig) Stats() asyncop.Stats {
	synctest.Wait()
	s := r.Op.Stats()
	s.LastError, s.LastErrorAge, s.WaitingToLeave = nil, 0, 0
	s.Capacity, s.MaxCalls = 0, 0
	return s
}

func CheckBalance(t *testing.T, s asyncop.Stats) {
	t.Helper()
	require.Equal(t, s.Accepted, s.InFlight+s.Completed+s.Dropped+s.HandedOver+s.Failed+s.Abandoned,
		"every element is in exactly one state: %+v", s)
}

// Hand is an asynchronous function that the test answers, or a script.
type Hand struct {
	t     *testing.T
	clock clock.Clock
	Start time.Time

	// Set before the elements are sent.
	scripts map[string]func(*Call) error // by name of the call, such as "a#1"
	Answer  func(*Call) error            // answers all other calls

	mu   sync.Mutex
	Made []*Call // guarded by mu
}

func NewHand(t *testing.T) *Hand {
	t.Helper()
	c := clock.New()
	return &Hand{t: t, clock: c, Start: c.Now(), scripts: map[string]func(*Call) error{}}
}

type Call struct {
	Future
	In      string
	Attempt int
	Ctx     context.Context //nolint:containedctx // of the call
	At      time.Duration
}

func (c *Call) String() string { return fmt.Sprintf("%s#%d", c.In, c.Attempt) }

func (h *Hand) Now() time.Duration { return h.clock.Since(h.Start) }

func (h *Hand) AsyncInvoke(ctx context.Context, in string, result Future) error {
	c := &Call{Future: result, In: in, Attempt: asyncop.AttemptFromContext(ctx), Ctx: ctx, At: h.Now()}
	h.mu.Lock()
	h.Made = append(h.Made, c)
	h.mu.Unlock()
	if script := h.scripts[c.String()]; script != nil {
		return script(c)
	}
	if h.Answer != nil {
		return h.Answer(c)
	}
	return nil
}

// Script sets the answer of a call. It runs on the loop.
func (h *Hand) Script(name string, f func(*Call) error) { h.scripts[name] = f }

// Upper answers at once, "a" with "A".
func Upper(c *Call) error {
	c.Complete(strings.ToUpper(c.In))
	return nil
}

// Fails answers at once with errBroken.
func Fails(*Call) error { return ErrBroken }

// Empty answers at once with an empty result.
func Empty(c *Call) error {
	c.Complete()
	return nil
}

// Call returns the call with a name, which must have been made.
func (h *Hand) Call(name string) *Call {
	h.t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.Made {
		if c.String() == name {
			return c
		}
	}
	require.Failf(h.t, "no such call", "%s among %v", name, h.Made)
	return nil
}

// Complete answers a call and waits until the operator is idle.
func (h *Hand) Complete(name string, results ...string) {
	h.t.Helper()
	h.Call(name).Complete(results...)
	synctest.Wait()
}

// Fail answers a call with an error and waits until the operator is idle.
func (h *Hand) Fail(name string, err error) {
	h.t.Helper()
	h.Call(name).CompleteExceptionally(err)
	synctest.Wait()
}

// Calls returns a text such as "a#1 b#1 a#2".
func (h *Hand) Calls() string { return h.callTexts((*Call).String) }

// CallTimes returns a text such as "a#1@0s b#1@0s a#2@10ms".
func (h *Hand) CallTimes() string {
	return h.callTexts(func(c *Call) string { return fmt.Sprintf("%s@%v", c, c.At) })
}

func (h *Hand) callTexts(text func(*Call) string) string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	texts := make([]string, len(h.Made))
	for i, c := range h.Made {
		texts[i] = text(c)
	}
	return strings.Join(texts, " ")
}

// SideSink is a failure sink that the test may block.
type SideSink struct {
	open chan struct{}

	mu       sync.Mutex
	failures []Failure // guarded by mu
}

func NewSideSink(blocked bool) *SideSink {
	s := &SideSink{open: make(chan struct{})}
	if !blocked {
		s.Unblock()
	}
	return s
}

func (s *SideSink) Take(ctx context.Context, f Failure) error {
	select {
	case <-s.open:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, f)
	return nil
}

func (s *SideSink) Unblock() { close(s.open) }

func (s *SideSink) Got() []Failure {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Failure(nil), s.failures...)
}

// Elements returns a text such as "a b".
func (s *SideSink) Elements() string {
	var names []string
	for _, f := range s.Got() {
		names = append(names, f.Element)
	}
	return strings.Join(names, " ")
}

// errNamed finds an error of asyncop by its text.
type errNamed string

func (e errNamed) In(err error) bool { return err != nil && strings.Contains(err.Error(), string(e)) }

const ErrControlResult errNamed = "asyncop: a control element is not a result"

const ErrHandlerLimit errNamed = "asyncop: the handler of a failure exceeded its limit (WithHandlerLimit)"

func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// stateText returns the elements of an operator's state as a text: "a" without attempts,
// "a#2" with two attempts, "|5|" for a watermark, "a=[A1 A2]" with results, "a@5" with
// the number of an observer.
func stateText[IN, OUT any](state []byte, results codec.Codec[OUT]) (string, error) {
	inputs := codec.Default[IN]()
	s, err := drive.StateCodec[IN, OUT]{Inputs: inputs, Results: results}.Decode(state)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(s.Items))
	for i, it := range s.Items {
		switch {
		case it.Kind == core.Control:
			texts[i] = fmt.Sprintf("|%d|", it.Rest.(asyncop.Watermark).Timestamp.Unix())
			continue
		case it.Attempts == 0:
			texts[i] = fmt.Sprint(it.In)
		default:
			texts[i] = fmt.Sprintf("%v#%d", it.In, it.Attempts)
		}
		if s.Observer != nil {
			texts[i] += fmt.Sprintf("@%d", s.Numbers[i])
		}
		if it.Kind == core.Completed {
			texts[i] += fmt.Sprintf("=%v", it.Results())
		}
	}
	return strings.Join(texts, " "), nil
}

func TimeoutMethod[IN, OUT any](
	fn asyncop.AsyncFunction[IN, OUT], timeout func(ctx context.Context, in IN) ([]OUT, error),
) asyncop.AsyncFunction[IN, OUT] {
	return &functionWithTimeout[IN, OUT]{fn, timeout}
}

type functionWithTimeout[IN, OUT any] struct {
	asyncop.AsyncFunction[IN, OUT]
	timeout func(ctx context.Context, in IN) ([]OUT, error)
}

func (f *functionWithTimeout[IN, OUT]) Timeout(ctx context.Context, in IN) ([]OUT, error) {
	return f.timeout(ctx, in)
}
func (f *functionWithTimeout[IN, OUT]) Unwrap() any { return f.AsyncFunction }
