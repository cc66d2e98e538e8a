package optest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
)

type Answer = asyncop.Result[string]

// Bulk is a function for batches. The test answers its calls, or Self does.
type Bulk struct {
	T     *testing.T
	hand  *Hand // has the clock
	Over  chan struct{}
	Self  func(c *BulkCall) ([]Answer, error)
	mu    sync.Mutex
	calls []*BulkCall // guarded by mu
}

type BulkCall struct {
	Ctx     context.Context   //nolint:containedctx // of the call
	Members []context.Context // of the members
	Ins     []string
	name    string // "a#1+b#2"
	at      time.Duration
	outcome chan func() ([]Answer, error)
}

// NewBulk returns an operator with batches of size elements. It ignores s.Wrap.
func NewBulk(t *testing.T, m Mode, size int, wait time.Duration, s Setup) (*Bulk, *Rig) {
	t.Helper()
	b := &Bulk{T: t, Over: make(chan struct{})}
	s.Wrap = b.Function(size, wait)
	r := NewRig(t, m, s)
	t.Cleanup(func() { close(b.Over) })
	return b, r
}

func (b *Bulk) Function(size int, wait time.Duration) func(h *Hand) Function {
	return func(h *Hand) Function {
		b.hand = h
		return asyncop.Batched(b.call, size, wait)
	}
}

func (b *Bulk) call(ctx context.Context, ins []string) ([]Answer, error) {
	c := &BulkCall{
		Ctx: ctx, Members: asyncop.MemberContexts(ctx), Ins: ins, at: b.hand.Now(), outcome: make(chan func() ([]Answer, error), 1),
	}
	names := make([]string, len(ins))
	for i, in := range ins {
		names[i] = fmt.Sprintf("%s#%d", in, asyncop.AttemptFromContext(c.Members[i]))
	}
	c.name = strings.Join(names, "+")
	b.mu.Lock()
	b.calls = append(b.calls, c)
	b.mu.Unlock()
	if b.Self != nil {
		return b.Self(c)
	}
	select {
	case outcome := <-c.outcome:
		return outcome()
	case <-b.Over:
		return nil, ErrTestOver
	}
}

// Named returns the call with a name, which must have been made.
func (b *Bulk) Named(name string) *BulkCall {
	b.T.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.calls, func(c *BulkCall) bool { return c.name == name })
	require.GreaterOrEqual(b.T, i, 0, "no call %s", name)
	return b.calls[i]
}

// Ends makes a call return outcome, or break as it does.
func (b *Bulk) Ends(name string, outcome func() ([]Answer, error)) {
	b.T.Helper()
	b.Named(name).outcome <- outcome
	synctest.Wait()
}

// Answers makes a call return a result for each member: a value, "!" for errBroken, or
// "-" for an empty result.
func (b *Bulk) Answers(name, results string) {
	b.T.Helper()
	var all []Answer
	for r := range strings.FieldsSeq(results) {
		switch r {
		case "!":
			all = append(all, Answer{Err: ErrBroken})
		case "-":
			all = append(all, Answer{Err: fmt.Errorf("wrapped: %w", asyncop.ErrNoResult)})
		default:
			all = append(all, Answer{Value: r})
		}
	}
	b.Ends(name, func() ([]Answer, error) { return all, nil })
}

// Times returns a text such as "a#1+b#1@1s".
func (b *Bulk) Times() string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	texts := make([]string, len(b.calls))
	for i, c := range b.calls {
		texts[i] = fmt.Sprintf("%s@%v", c.name, c.at)
	}
	return strings.Join(texts, " ")
}
