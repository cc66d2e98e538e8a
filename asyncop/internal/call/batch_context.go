package call

import (
	"context"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/predicates"
)

// Value is [Attempt.Value] with [BatchKey].
func (m *Member[IN, OUT]) Value(key any) any {
	if k, ok := key.(BatchKey); ok && k.Of == m.batch.of {
		return m.batch
	}
	return m.Attempt.Value(key)
}

// A batch is the context of its call. It ends when all members have ended. It is safe for
// concurrent use.
var (
	_ Cancellable = (*Batch[any, any])(nil)
	_ Cancellable = (*Member[any, any])(nil)
)

// Deadline returns the latest deadline if all members have one.
func (b *Batch[IN, OUT]) Deadline() (latest time.Time, ok bool) {
	for _, m := range b.ctxs {
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
func (b *Batch[IN, OUT]) Done() <-chan struct{} { return b.end().Done() }

// AfterFunc is [Token.AfterFunc].
func (b *Batch[IN, OUT]) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(b.end(), f)
}

// Err returns nil until all members have ended, then context.DeadlineExceeded if all
// timed out, otherwise context.Canceled.
func (b *Batch[IN, OUT]) Err() error {
	if b.ongoing() != nil {
		return nil
	}
	b.signal.fire() // before Err returns an error
	for _, m := range b.ctxs {
		if err := m.Err(); err != context.DeadlineExceeded {
			return context.Canceled
		}
	}
	return context.DeadlineExceeded
}

// ongoing returns the first member that has not ended, or nil.
func (b *Batch[IN, OUT]) ongoing() context.Context {
	for i := b.numEnded.Load(); i < int64(len(b.ctxs)); i++ {
		if b.ctxs[i].Err() == nil {
			b.numEnded.Store(i)
			return b.ctxs[i]
		}
	}
	return nil
}

func (b *Batch[IN, OUT]) end() context.Context {
	b.watched.Do(b.watch)
	return b.signal.context()
}

// watch fires the signal when all members have ended.
func (b *Batch[IN, OUT]) watch() {
	if m := b.ongoing(); m != nil {
		context.AfterFunc(m, b.watch)
	} else {
		b.signal.fire()
	}
}

// Value implements context.Context.
func (b *Batch[IN, OUT]) Value(key any) any {
	switch key := key.(type) {
	case ctxkey.Members:
		return b.ctxs
	case BackendKey:
		if b.host.Backend != nil && b.host.Backend == key.Backend {
			return b.Stamp
		}
	case ctxkey.Stage:
		return (*batchStages[IN, OUT])(b)
	case CostKey:
		return b
	case NumberKey, AttemptKey, ctxkey.Borrow, ctxkey.Message, ctxkey.Delivery: // an outer attempt must not answer
		return nil
	}
	return b.parent().Value(key)
}

// parent returns the context with the values and, after the end of the call, its cause:
// see [Token.parent]. If the operator has ended a member, the cause is the operator's.
// Otherwise, if a purge has ended a member, it is message.ErrPurged.
func (b *Batch[IN, OUT]) parent() context.Context {
	if b.ongoing() != nil {
		return b.host.Values
	}
	isPurged := false
	for i := range b.members {
		switch b.members[i].parent() {
		case b.host.Life:
			return b.host.Life
		case b.host.Values:
		default: // a context with the cause message.ErrPurged
			isPurged = true
		}
	}
	if isPurged {
		return WithEnd(b.host.Values, purged)
	}
	return b.host.Values
}

// batchStages is the [Reporter] of a batch. A report counts for all members.
type batchStages[IN, OUT any] Batch[IN, OUT]

// ReportStage reports the stage of the call.
func (b *batchStages[IN, OUT]) ReportStage(stage predicates.Stage) {
	for _, m := range b.ctxs {
		predicates.ReportStage(m, stage)
	}
}

// ReportSent counts a request for each member. The request is not deduplicated: if a
// member is repeated in another batch, the server does not recognise it.
func (b *batchStages[IN, OUT]) ReportSent(bool) (counted bool) {
	for _, m := range b.ctxs {
		if r := ReporterIn(m); r != nil && r.ReportSent(false) {
			counted = true
		}
	}
	return counted
}

// ReportRefused takes back a request of each member.
func (b *batchStages[IN, OUT]) ReportRefused(bool) {
	for _, m := range b.ctxs {
		if r := ReporterIn(m); r != nil {
			r.ReportRefused(false)
		}
	}
}
