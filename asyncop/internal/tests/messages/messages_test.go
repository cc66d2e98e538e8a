package messages_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/strategies"
)

// workOn is a function whose behavior depends on the value of the message: "three/x"
// gives three results.
func workOn(ctx context.Context, in string) ([]string, error) {
	if meta, ok := message.MetaFromContext(ctx); !ok || meta.ID != in {
		return nil, fmt.Errorf("the context of %q has %q, %v", in, meta.ID, ok)
	}
	switch kind, _, _ := strings.Cut(in, "/"); kind {
	case "none":
		return nil, nil
	case "two":
		return []string{in + ".1", in + ".2"}, nil
	case "three":
		return []string{in + ".1", in + ".2", in + ".3"}, nil
	case "again":
		if asyncop.AttemptFromContext(ctx) == 1 {
			return []string{"again", "once more"}, nil
		}
		return []string{in + ".1", in + ".2"}, nil
	case "fails":
		return nil, optest.ErrBroken
	case "hangs":
		<-ctx.Done()
		return nil, ctx.Err()
	case "slow":
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return []string{in}, nil
}

// The drivers of a line.

const byFlow = "flow"

const byMessages = "Messages"

// line is a run of one operator, or two, over messages.
type line struct {
	t      *testing.T
	m      optest.Mode
	keyed  bool // key order, and all messages have the same key
	driver string
	shape  string // "one", "two", "filtered"
	v      optest.Settlements
	after  []time.Duration  // when the operators are cancelled, from the start of the run
	opts   []asyncop.Option // of the first operator
	fn     asyncop.AsyncFunction[string, string]
	body   func(m message.Message[string]) (more bool) // nil acknowledges every message

	got     []string
	err     error
	yielded int // messages that the operator was given
}

func (l *line) operator(ctx context.Context, fn asyncop.AsyncFunction[string, string], opts []asyncop.Option) *asyncop.AsyncWaitOperator[string, string] {
	construct := asyncop.OrderedWaitWithRetry[string, string]
	switch {
	case l.keyed:
		construct = func(fn optest.Function, timeout time.Duration, capacity int, s optest.Strategy, opts ...asyncop.Option) *optest.Operator {
			return asyncop.KeyOrderedWait(fn, func(string) int { return 1 }, timeout, capacity, s, opts...)
		}
	case !l.m.Ordered:
		construct = asyncop.UnorderedWaitWithRetry[string, string]
	}
	return construct(fn, 10*time.Second, l.m.Capacity,
		strategies.FixedDelay[string](1, time.Second).RetryIfResult(func(results []string) bool { return slices.Contains(results, "again") }),
		append([]asyncop.Option{asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
}

func (l *line) take(m message.Message[string]) bool {
	l.got = append(l.got, m.Value)
	if l.body != nil {
		return l.body(m)
	}
	m.Ack()
	return true
}

// run passes messages through and returns when all have ended.
func (l *line) run(ids ...string) {
	ctx, cancel := context.WithCancelCause(l.t.Context())
	defer cancel(nil)
	for _, d := range l.after {
		time.AfterFunc(d, func() { cancel(optest.ErrTestOver) })
	}
	if l.fn == nil {
		l.fn = asyncop.BlockingMany(workOn)
	}
	var messages []message.Message[string]
	for _, id := range ids {
		messages = append(messages, l.v.Message(id))
	}
	first := l.operator(ctx, l.fn, l.opts)
	ops := []*asyncop.AsyncWaitOperator[string, string]{first}
	if l.shape != "one" {
		second := asyncop.Blocking(func(_ context.Context, in string) (string, error) { return in, nil })
		ops = append(ops, l.operator(ctx, second, nil))
	}
	last := ops[len(ops)-1]
	if l.driver == byFlow {
		l.yielded = len(messages)
	}
	switch {
	case l.driver == byFlow:
		go func() {
			defer close(first.In())
			for _, m := range messages {
				first.In() <- m
			}
		}()
		var next streams.Flow = first
		if l.shape == "filtered" {
			next = first.Via(flow.NewFilter(func(v string) bool { return !strings.Contains(v, "filtered") }))
		}
		if l.shape != "one" {
			next.Via(last)
		}
		for v := range last.Out() {
			l.take(v.(message.Message[string]))
		}
	default:
		results := first.Messages(func(yield func(message.Message[string], error) bool) {
			for _, m := range messages {
				l.yielded++
				if !yield(m, nil) {
					return
				}
			}
		})
		if l.shape == "filtered" {
			all := results
			results = func(yield func(message.Message[string], error) bool) {
				for m, err := range all {
					if err == nil && strings.Contains(m.Value, "filtered") {
						m.Ack()
					} else if !yield(m, err) {
						return
					}
				}
			}
		}
		if l.shape != "one" {
			results = last.Messages(results)
		}
		func() {
			defer func() {
				if r := recover(); r != nil && r != any("the body is broken") {
					panic(r)
				}
			}()
			for m, err := range results {
				if err != nil {
					l.err = err
					continue
				}
				if !l.take(m) {
					return
				}
			}
		}()
	}
	for _, op := range ops {
		l.err = errors.Join(l.err, op.Wait())
	}
	synctest.Wait()
}

func (l *line) wants(want map[string]string) {
	l.t.Helper()
	require.Equal(l.t, want, l.v.All(), "got %v, %v", l.got, l.err)
}

// forEachLine runs body for each driver, order and shape.
func forEachLine(t *testing.T, body func(l *line)) {
	for _, driver := range []string{byFlow, byMessages} {
		for _, shape := range []string{"one", "two", "filtered"} {
			t.Run(driver+"/"+shape, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) { body(&line{t: t, m: m, driver: driver, shape: shape}) }, 4)
				t.Run("key-ordered", func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						body(&line{t: t, m: optest.Mode{Ordered: true, Capacity: 4}, keyed: true, driver: driver, shape: shape})
					})
				})
			})
		}
	}
}

// ends are the ways in which an element may end, each with the expected settlements of
// its message and of a neighbour's message (law D2). "" means no settlement.
var ends = map[string]struct {
	ids  []string
	set  func(l *line)
	want func(l *line) map[string]string
}{
	"emitted":  {ids: []string{"x", "y"}, want: told("x", "done", "y", "done")},
	"empty":    {ids: []string{"none", "y"}, want: told("none", "done", "y", "done")},
	"several":  {ids: []string{"two", "three", "y"}, want: told("two", "done", "three", "done", "y", "done")},
	"retried":  {ids: []string{"again", "y"}, want: told("again", "done", "y", "done")},
	"filtered": {ids: []string{"filtered", "y"}, want: told("filtered", "done", "y", "done")},
	"a part has failed": {
		ids: []string{"three", "y"},
		set: func(l *line) {
			l.body = func(m message.Message[string]) bool {
				if m.Value == "three.2" {
					m.Nack(time.Minute)
				}
				m.Ack()
				return true
			}
		},
		want: told("three", "failed for 1m0s", "y", "done"),
	},
	"rejected downstream": {
		ids: []string{"x"},
		set: func(l *line) {
			l.body = func(m message.Message[string]) bool { m.Reject(optest.ErrBroken); return true }
		},
		want: told("x", "rejected: broken"),
	},
	"failed":    {ids: []string{"fails"}, want: told("fails", "failed: broken")},
	"timed out": {ids: []string{"hangs"}, want: told("hangs", "failed: asyncop: timed out after 10s and 1 attempt")},
	"handler's result": {
		ids: []string{"hangs", "y"},
		set: func(l *line) {
			l.fn = asyncop.HandleFailure(asyncop.BlockingMany(workOn), func(ctx context.Context, f optest.Failure) ([]string, error) {
				if meta, _ := message.MetaFromContext(ctx); meta.ID != f.Element {
					return nil, optest.ErrBroken
				}
				return []string{"late"}, nil
			})
		},
		want: told("hangs", "done", "y", "done"),
	},
	"dropped": {
		ids:  []string{"fails", "y"},
		set:  func(l *line) { l.opts = optest.Options(asyncop.WithDropOnFailure()) },
		want: told("fails", "handed over", "y", "done"),
	},
	"taken by the sink": {
		ids:  []string{"fails", "y"},
		set:  func(l *line) { l.sink(0, nil) },
		want: told("fails", "handed over", "y", "done"),
	},
	"refused by the sink twice": {
		ids: []string{"fails", "hangs", "y"},
		set: func(l *line) { l.sink(2, func() error { return optest.ErrBroken }) },
		want: func(l *line) map[string]string {
			y := "done"
			if l.keyed { // it waits behind "hangs" until its own timeout
				y = "handed over"
			}
			return map[string]string{"fails": "handed over", "hangs": "handed over", "y": y}
		},
	},
	"panicking sink": {
		ids:  []string{"fails", "y"},
		set:  func(l *line) { l.sink(1, func() error { panic("broken") }) },
		want: told("fails", "handed over", "y", "done"),
	},
	"refused by the sink for ever": {
		ids: []string{"fails"},
		set: func(l *line) {
			l.sink(1000, func() error { return optest.ErrBroken })
			l.after = append(l.after, time.Minute)
		},
		want: told("fails", "released"),
	},
	"cancelled": {
		ids: []string{"hangs/1", "hangs/2"},
		set: func(l *line) {
			l.sink(0, nil) // redelivered messages are not offered to the sink
			l.after = append(l.after, time.Second)
		},
		want: told("hangs/1", "released", "hangs/2", "released"),
	},
	"discarded": {
		ids: []string{"hangs/1", "hangs/2", "hangs/3", "hangs/4", "late/1", "late/2"},
		set: func(l *line) { l.after = append(l.after, time.Second) },
		want: func(l *line) map[string]string {
			return map[string]string{
				"hangs/1": "released", "hangs/2": "released", "hangs/3": "released", "hangs/4": "released", "late/1": "released", "late/2": "released",
			}
		},
	},
	"broken source": {ids: []string{"panics", "y", "fails"}, set: func(l *line) {
		l.opts = optest.Options(asyncop.WithDropOnFailure())
		l.fn = asyncop.BlockingMany(func(ctx context.Context, in string) ([]string, error) {
			if in == "panics" {
				return nil, nil
			}
			return workOn(ctx, in)
		})
	}, want: told("panics", "done", "y", "done", "fails", "handed over")},
	"broken off": {
		ids: []string{"x", "two", "y", "none", "hangs"},
		set: func(l *line) {
			n := 0
			l.body = func(m message.Message[string]) bool {
				n++
				time.Sleep(5 * time.Second) // the others are in flight
				m.Ack()
				return l.driver == byFlow || n < 2
			}
		},
		want: func(l *line) map[string]string {
			if l.driver == byFlow { // a flow has no loop to leave
				return map[string]string{"x": "done", "two": "done", "y": "done", "none": "done", "hangs": "failed: asyncop: timed out after 10s and 1 attempt"}
			}
			return nil // depends on which came first
		},
	},
	"panicking body": {
		ids: []string{"x", "y", "three"},
		set: func(l *line) {
			l.body = func(m message.Message[string]) bool {
				if l.driver == byFlow {
					m.Release()
					return true
				}
				panic("the body is broken")
			}
		},
		want: told("x", "released", "y", "released", "three", "released"),
	},
}

func told(pairs ...string) func(*line) map[string]string {
	return func(*line) map[string]string {
		want := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			want[pairs[i]] = pairs[i+1]
		}
		return want
	}
}

// sink gives the line a failure sink that refuses each element a number of times and
// checks its arguments.
func (l *line) sink(refusals int, refuse func() error) {
	left := map[string]int{}
	l.opts = optest.Options(asyncop.WithFailureSink(func(ctx context.Context, f optest.Failure) error {
		meta, _ := message.MetaFromContext(ctx)
		if meta.ID != f.Element || f.Abandoned || l.v.Of(meta.ID) != "" {
			l.t.Errorf("%+v with meta %v, told %q", f, meta, l.v.Of(meta.ID))
		}
		if _, ok := left[f.Element]; !ok {
			left[f.Element] = refusals
		}
		if left[f.Element]--; left[f.Element] >= 0 {
			return refuse()
		}
		return nil
	}))
}

// Laws A1, D1, D2: every message is settled exactly once, however its element ends: by
// the operator or, if it was emitted, by its receiver.
func TestMessages_SettledOnce(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		t.Run(name, func(t *testing.T) {
			forEachLine(t, func(l *line) {
				end := ends[name]
				if end.set != nil {
					end.set(l)
				}
				l.run(end.ids...)
				if want := end.want(l); want != nil {
					l.wants(want)
					return
				}
				told := l.v.All()
				for id, settled := range told {
					require.Regexp(l.t, "^(done|released|failed: .*)$", settled, id)
				}
				require.Len(l.t, told, l.yielded, "%v", told)
				require.LessOrEqual(l.t, len(l.got), 2)
			})
		})
	}
}

// A message that the body holds belongs to the body, even if the operator is cancelled
// before the body returns. It is neither released nor offered to the failure sink.
func TestMessageOfTheBodyAtACancel(t *testing.T) {
	for name, settled := range map[string]bool{"settled before": true, "settled after": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var v optest.Settlements
				var offered []string
				op := asyncop.OrderedWait(asyncop.BlockingMany(workOn), time.Minute, 4, asyncop.WithContext(ctx),
					asyncop.WithLogger(slog.New(slog.DiscardHandler)),
					asyncop.WithFailureSink(func(_ context.Context, f optest.Failure) error { offered = append(offered, f.Element); return nil }))
				for m, err := range op.Messages(optest.Received(v.Message("x"))) {
					if err != nil {
						require.ErrorIs(t, err, context.Canceled)
						break
					}
					if settled {
						m.Ack()
					}
					cancel()
					<-op.Done()
					m.Ack()
				}
				require.Empty(t, offered)
				require.Equal(t, map[string]string{"x": "done"}, v.All())
			})
		})
	}
}

// renames is an observer whose contexts have the history of another message.
type renames struct{ optest.Mute }

func (renames) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	return message.ContextWithMeta(ctx, message.Meta{ID: "another"})
}

// A call finds the history of its own message, even if observers put another history into
// the context.
func TestObserversLeaveTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v optest.Settlements
		op := asyncop.OrderedWait(asyncop.BlockingMany(workOn), time.Minute, 4, asyncop.WithObserver(renames{}))
		for m, err := range op.Messages(optest.Received(v.Message("x"))) {
			require.NoError(t, err)
			require.Equal(t, "x", m.Value)
			m.Ack()
		}
	})
}

// When the body ends the loop, parts that it has not received are released, and their
// message with them.
func TestPartsBehindABreak(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		l := &line{t: t, m: m, driver: byMessages, shape: "one"}
		l.body = func(m message.Message[string]) bool { m.Ack(); return false }
		l.run("three")
		l.wants(map[string]string{"three": "released"})
	}, 4)
}

// In ordered modes, messages come out in the order of their values. Each has its own
// history, and parts have their own ids.
func TestMessagesKeepTheirHistory(t *testing.T) {
	forEachLine(t, func(l *line) {
		var ids []string
		l.body = func(m message.Message[string]) bool {
			ids = append(ids, m.Value+"="+m.Meta().ID)
			m.Ack()
			return true
		}
		l.run("x", "two")
		require.NoError(l.t, l.err)
		slices.Sort(ids)
		require.Equal(l.t, []string{"two.1=two#1", "two.2=two#2", "x=x"}, ids)
	})
}

// A message with an acknowledgement is redelivered if the operator ends before the
// failure sink takes it, and is not offered again.
func TestFailedMessagesAreNotOfferedAgain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var v optest.Settlements
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithContext(ctx), asyncop.WithFailureSink(func(context.Context, optest.Failure) error {
			if ctx.Err() == nil {
				return optest.ErrBroken
			}
			return nil
		}))})
		r.Answer = optest.Fails
		r.Send(v.Message("a"))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, r.Wait(), context.Canceled)
		require.Equal(t, map[string]string{"a": "released"}, v.All())
		require.Zero(t, r.Stats().HandedOver)
	})
}

// A message without an acknowledgement is not redelivered. The failure sink gets it at
// the end, with its history.
func TestMessagesThatDoNotComeAgain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var got []string
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithFailureSink(func(ctx context.Context, f optest.Failure) error {
			meta, _ := message.MetaFromContext(ctx)
			got = append(got, fmt.Sprint(meta.ID, " ", f.Abandoned))
			return nil
		}))})
		r.Send(message.New("a", &message.Meta{ID: "a"}, nil))
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		require.Equal(t, []string{"a true"}, got)
	})
}

// Checkpoints hold values: a message without an acknowledgement is restored without its
// history, whether or not it had a slot.
func TestMessagesInCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		plain := func(id string) any { return message.New(id, &message.Meta{ID: id}, nil) }
		r := optest.NewCheckRig(t, m, optest.Setup{Timeout: time.Hour}, store)
		r.Send(plain("a"))
		r.Complete("a#1", "A")
		require.Contains(t, r.Outputs(), "{A ", "it is a message until a restart")
		r.Send(plain("x"))
		b, done := r.Trigger(checkpoint.Periodic)
		r.Send(plain("y"), b) // past the capacity
		require.NoError(t, <-done)
		r.Complete("x#1", "X")
		r.Complete("y#1", "Y")
		require.Contains(t, r.Outputs(), "{Y ", "behind the slots, too")
		r.Send(plain("b"), plain("c"))
		b, done = r.Trigger(checkpoint.Suspend)
		r.Send(b)
		require.NoError(t, <-done)
		require.NoError(t, r.Wait())

		r = optest.NewCheckRig(t, m, optest.Setup{Timeout: time.Hour}, store)
		r.Complete("b#1", "B")
		r.Complete("c#1", "C")
		require.Equal(t, "B C", r.Outputs())
	}, 1)
}

// A message is recognised whatever its T is. A value that is not an IN is a *TypeError,
// and the message is redelivered.
func TestMessagesOfOtherTypes(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var v optest.Settlements
		anything := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in any) (any, error) { return in, nil }), 0, 4)
		go func() {
			defer close(anything.In())
			anything.In() <- optest.MessageOf(&v, "a", 1)
			anything.In() <- optest.MessageOf[any](&v, "b", nil)
			anything.In() <- "plain"
			anything.In() <- &message.Message[int]{Value: 7}
		}()
		var got []string
		for out := range anything.Out() {
			got = append(got, fmt.Sprintf("%T", out))
			if m, ok := out.(message.Message[any]); ok {
				m.Ack()
			}
		}
		require.NoError(t, anything.Wait())
		require.Equal(t, "message.Message[interface {}] message.Message[interface {}] string *message.Message[int]", strings.Join(got, " "))
		require.Equal(t, map[string]string{"a": "done", "b": "done"}, v.All())

		for _, wrong := range []any{optest.MessageOf(&v, "c", 5), optest.MessageOf[any](&v, "d", nil)} {
			r := optest.NewRig(t, m, optest.Setup{})
			r.Send(wrong)
			typed, ok := errors.AsType[*asyncop.TypeError](r.Wait())
			require.True(t, ok)
			require.ErrorContains(t, typed, fmt.Sprintf("got an element of type %T, want string", wrong))
		}
		require.Equal(t, "released", v.Of("c"))
		require.Equal(t, "released", v.Of("d"))

		r := optest.NewRig(t, m, optest.Setup{})
		r.Answer = optest.Upper
		r.Send(optest.MessageOf[any](&v, "e", "e")) // another T, and a value that fits
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("{E}", "{E}"), strings.Map(func(c rune) rune {
			if strings.ContainsRune("{E}", c) {
				return c
			}
			return -1
		}, r.Outputs())[:3])
	})
}

// A message as a result is refused, because it would become the value of a message.
func TestMessagesAreNoResults(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, _ optest.Mode) {
		op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, string) (any, error) {
			return message.Message[string]{}, nil
		}), 0, 4, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for _, err := range op.Results(slices.Values([]string{"a"})) {
			require.ErrorContains(t, err, string(optest.ErrControlResult))
		}
	})
}

func TestMessageTypesAreRefused(t *testing.T) {
	type messages = message.Message[string]
	require.Contains(t, optest.PanicOf(func() {
		asyncop.OrderedWait(asyncop.Blocking(func(context.Context, messages) (int, error) { return 0, nil }), 0, 1)
	}), "OrderedWait: the operator takes messages by itself: write its function for the value of a message.Message[string]")
	require.Contains(t, optest.PanicOf(func() {
		asyncop.UnorderedWait(asyncop.Blocking(func(context.Context, int) (messages, error) { return messages{}, nil }), 0, 1)
	}), "UnorderedWait: the operator makes messages by itself")
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in *messages) (*messages, error) { return in, nil }), 0, 1)
	for range op.Results(slices.Values([]*messages{nil})) {
	}
}

// Law C2: with checkpoints, a message with its own acknowledgement is refused and
// redelivered. A message that only has its history is accepted.
func TestCheckpointsRefuseAcknowledgedMessages(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var v optest.Settlements
		r := optest.NewCheckRig(t, m, optest.Setup{}, checkpointtest.NewMemoryStore())
		r.Answer = optest.Upper
		r.Send(message.New("a", &message.Meta{ID: "a"}, nil))
		require.Contains(t, r.Outputs(), "A")
		r.Send(v.Message("b"))
		require.ErrorIs(t, r.Wait(), wiring.ErrAcknowledged)
		require.Equal(t, "released", v.Of("b"))
	})
}

// Accepted of observers gets the history of a message, and a call of Blocking keeps its
// direct path.
func TestObserversSeeMessages(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var v optest.Settlements
		o := &metaObserver{}
		l := &line{t: t, m: m, driver: byMessages, shape: "one", opts: optest.Options(asyncop.WithObserver(o))}
		l.run("x", "none")
		require.NoError(t, l.err)
		require.ElementsMatch(t, []string{"x", "none"}, o.ids)
		require.Empty(t, v.All())
	})
}

type metaObserver struct{ ids []string }

func (o *metaObserver) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	m, _ := message.MetaFromContext(ctx)
	o.ids = append(o.ids, m.ID)
	return ctx
}

func (*metaObserver) AttemptStarted(ctx context.Context, _ int) context.Context { return ctx }
func (*metaObserver) AttemptEnded(context.Context, observe.Outcome)             {}
func (*metaObserver) Ended(context.Context, observe.Ending)                     {}

// An error of the input ends the input. Accepted elements are finished, and the operator
// fails with the error.
func TestMessagesOfAnInputThatFails(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		l := &line{t: t, m: m}
		op := l.operator(t.Context(), asyncop.BlockingMany(workOn), nil)
		var last error
		for m, err := range op.Messages(func(yield func(message.Message[string], error) bool) {
			_ = yield(l.v.Message("slow"), nil) && yield(message.Message[string]{}, io.ErrUnexpectedEOF)
		}) {
			if last = err; err == nil {
				m.Ack()
			}
		}
		require.ErrorIs(t, last, io.ErrUnexpectedEOF)
		l.wants(map[string]string{"slow": "done"})
	})
}

// A message is not redelivered while downstream has a part of it. It is released when
// that part is settled.
func TestPartsThatDoNotLeave(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		l := &line{t: t, m: m}
		ctx, cancel := context.WithCancelCause(t.Context())
		op := l.operator(ctx, asyncop.BlockingMany(workOn), optest.Options(asyncop.WithBuffer(0)))
		op.In() <- l.v.Message("three")
		first := (<-op.Out()).(message.Message[string])
		synctest.Wait()
		cancel(optest.ErrTestOver)
		<-op.Done()
		require.Empty(t, l.v.Of("three"))
		first.Ack()
		require.Equal(t, "released", l.v.Of("three"))
		close(op.In())
	})
}

// Random schedules: in every case, each message that the operator has received is settled
// once. It is acknowledged only if all its results were, or if it ended in a way that
// allows it.
func TestMessagesAtRandom(t *testing.T) {
	kinds := []string{"x", "none", "two", "three", "again", "fails", "hangs", "slow", "filtered"}
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 13))
		driver := []string{byFlow, byMessages}[random.IntN(2)]
		shape := []string{"one", "two", "filtered"}[random.IntN(3)]
		m := optest.Mode{Ordered: random.IntN(2) == 0, Capacity: 1 + random.IntN(5)}
		t.Run(fmt.Sprintf("%d/%s/%s/%v", seed, driver, shape, m.Ordered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &line{t: t, m: m, driver: driver, shape: shape}
				var ids []string
				for i := range 1 + random.IntN(20) {
					ids = append(ids, fmt.Sprintf("%s/%d", kinds[random.IntN(len(kinds))], i))
				}
				l.opts = optest.Options(asyncop.WithBuffer(random.IntN(4)))
				policy := random.IntN(3)
				switch policy {
				case 1:
					l.opts = append(l.opts, asyncop.WithDropOnFailure())
				case 2:
					var mu sync.Mutex
					l.opts = append(l.opts, asyncop.WithFailureSink(func(context.Context, optest.Failure) error {
						mu.Lock()
						defer mu.Unlock()
						if random.IntN(3) == 0 {
							return optest.ErrBroken
						}
						return nil
					}))
				}
				lasts, pace := 1+random.IntN(60), time.Duration(random.IntN(3))*time.Second
				nacks := map[string]bool{} // by the body
				n := 0
				l.body = func(m message.Message[string]) bool {
					time.Sleep(pace)
					if n++; n%5 == 0 {
						id, _, _ := strings.Cut(m.Meta().ID, "#")
						nacks[id] = true
						m.Release()
					}
					m.Ack()
					return driver == byFlow || n < lasts
				}
				if random.IntN(3) == 0 {
					l.after = append(l.after, time.Duration(random.IntN(20))*time.Second)
				}
				l.run(ids...)
				told := l.v.All()
				for id, settled := range told {
					require.Regexp(t, "^(done|handed over|released|failed: .*)$", settled, id)
					if nacks[id] {
						require.Equal(t, "released", settled, id)
					}
					if failed := strings.HasPrefix(id, "fails") || strings.HasPrefix(id, "hangs"); failed && policy == 0 {
						require.Regexp(t, "^(released|failed: .*)$", settled, id)
					}
				}
				require.Len(t, told, l.yielded, "%v of %v", told, ids)
				if l.err == nil && lasts > len(l.got) && policy > 0 {
					for id, settled := range told {
						if !nacks[id] {
							require.Contains(t, []string{"done", "handed over"}, settled, "%s: %v", id, l.err)
						}
					}
				}
			})
		})
	}
}

// Regression: AwaitSlots waited until the end of the run if Results drives the operator.
func TestAwaitSlots_OutsideOfMessages(t *testing.T) {
	const text = "asyncop: AwaitSlots: not called by the input of Messages"
	op := asyncop.OrderedWait(asyncop.BlockingMany(workOn), time.Minute, 1, asyncop.WithDropOnFailure())
	require.PanicsWithValue(t, text, func() { op.AwaitSlots(t.Context()) }, "nothing drives it")
	for range op.Results(func(func(string) bool) {
		require.PanicsWithValue(t, text, func() { op.AwaitSlots(t.Context()) })
	}) {
		t.Error("there is no input")
	}
	require.NoError(t, op.Wait())
}
