package call

import (
	"context"
	"time"

	"github.com/weirflow/weir/internal/metakey"
	"github.com/weirflow/weir/internal/stagekey"
	"github.com/weirflow/weir/predicates"
)

// MemberContext is a member as the context of its attempt. It is safe for concurrent use.
type MemberContext[IN, OUT any] Member[IN, OUT]

var _ Cancellable = (*MemberContext[any, any])(nil)

func (c *MemberContext[IN, OUT]) attempt() *AttemptContext[OUT] {
	return (*AttemptContext[OUT])(&c.Attempt)
}

// Deadline is [Context.Deadline].
func (c *MemberContext[IN, OUT]) Deadline() (time.Time, bool) { return c.attempt().Deadline() }

// Done is [Context.Done].
func (c *MemberContext[IN, OUT]) Done() <-chan struct{} { return c.attempt().Done() }

// Err is [Context.Err].
func (c *MemberContext[IN, OUT]) Err() error { return c.attempt().Err() }

// AfterFunc is [Context.AfterFunc].
func (c *MemberContext[IN, OUT]) AfterFunc(f func()) (stop func() bool) {
	return c.attempt().AfterFunc(f)
}

// Value is [AttemptContext.Value], and knows the batch.
func (c *MemberContext[IN, OUT]) Value(key any) any {
	if k, ok := key.(BatchKey); ok && k.Of == c.batch.of {
		return c.batch
	}
	return c.attempt().Value(key)
}

// BatchContext is the context of a call for many elements. It ends with the last of their contexts. What belongs to an attempt,
// such as its number, is in those only. It is safe for concurrent use.
type BatchContext[IN, OUT any] Batch[IN, OUT]

var _ Cancellable = (*BatchContext[any, any])(nil)

// Deadline returns the latest of the members' deadlines; none if one of them has none.
func (c *BatchContext[IN, OUT]) Deadline() (latest time.Time, ok bool) {
	for _, m := range c.ctxs {
		deadline, ok := m.Deadline()
		if !ok {
			return time.Time{}, false
		}
		if deadline.After(latest) {
			latest = deadline
		}
	}
	return latest, true
}

// Done returns a channel that is closed when all members have ended.
func (c *BatchContext[IN, OUT]) Done() <-chan struct{} { return c.ending().done }

// AfterFunc is [Context.AfterFunc].
func (c *BatchContext[IN, OUT]) AfterFunc(f func()) (stop func() bool) {
	return c.ending().afterFunc(f)
}

// Err returns nil as long as a member goes on, then context.DeadlineExceeded if the time of all has run out, and
// context.Canceled else.
func (c *BatchContext[IN, OUT]) Err() error {
	if c.ongoing() != nil {
		return nil
	}
	if s := c.signal.Load(); s != nil {
		s.fire() // Done is closed when Err says so, not a moment later
	}
	for _, m := range c.ctxs {
		if err := m.Err(); err != context.DeadlineExceeded {
			return context.Canceled
		}
	}
	return context.DeadlineExceeded
}

// ongoing returns the first member that has not ended, or nil.
func (c *BatchContext[IN, OUT]) ongoing() context.Context {
	for i := c.over.Load(); i < int64(len(c.ctxs)); i++ {
		if c.ctxs[i].Err() == nil {
			c.over.Store(i)
			return c.ctxs[i]
		}
	}
	return nil
}

// ending returns the signal, which exists from the first call on.
func (c *BatchContext[IN, OUT]) ending() *signal {
	s := c.signal.Load()
	if s == nil {
		s = &signal{done: make(chan struct{})}
		if !c.signal.CompareAndSwap(nil, s) {
			return c.signal.Load()
		}
		c.watch(s)
	}
	return s
}

// watch has s fire when all members have ended. It watches one of them at a time.
func (c *BatchContext[IN, OUT]) watch(s *signal) {
	if m := c.ongoing(); m != nil {
		context.AfterFunc(m, func() { c.watch(s) })
	} else {
		s.fire()
	}
}

// Value returns the values of the operator's context.
func (c *BatchContext[IN, OUT]) Value(key any) any {
	switch key := key.(type) {
	case MembersKey:
		return c.ctxs
	case BackendKey:
		if c.host.Backend != nil && c.host.Backend == key.Backend {
			return true
		}
	case PermitsKey:
		if c.host.Share.Of(key.Permits) {
			return true
		}
	case stagekey.Key:
		return (*batchStages[IN, OUT])(c)
	case NumberKey, HostKey, metakey.Key: // of an attempt, which may be one around the operator
		return nil
	}
	return c.parent().Value(key)
}

// parent is [Context.parent]: the operator has ended the call if it has ended a member.
func (c *BatchContext[IN, OUT]) parent() context.Context {
	if c.ongoing() == nil {
		for i := range c.members {
			if p := (*Context)(&c.members[i].Token).parent(); p == c.host.Life {
				return p
			}
		}
	}
	return c.host.Values
}

// batchStages is a batch as what stages are reported to: a report counts for all members.
type batchStages[IN, OUT any] BatchContext[IN, OUT]

// ReportStage reports how far the call has come.
func (b *batchStages[IN, OUT]) ReportStage(stage predicates.Stage) {
	for _, m := range b.ctxs {
		predicates.ReportStage(m, stage)
	}
}

// ReportSent counts a request for each member. A tracked one counts as any other: its identity is not that of a member, so its
// server does not recognise the member when that comes again in another batch.
func (b *batchStages[IN, OUT]) ReportSent(bool) (counted bool) {
	for _, r := range b.reporters() {
		counted = r.ReportSent(false) || counted
	}
	return counted
}

// ReportRefused takes a request back.
func (b *batchStages[IN, OUT]) ReportRefused(bool) {
	for _, r := range b.reporters() {
		r.ReportRefused(false)
	}
}

func (b *batchStages[IN, OUT]) reporters() (all []Reporter) {
	for _, m := range b.ctxs {
		if r := ReporterIn(m); r != nil {
			all = append(all, r)
		}
	}
	return all
}
