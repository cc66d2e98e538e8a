package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
	"github.com/weirflow/weir/message"
)

// Put implements [store.Engine]. Up to 1,000 messages are a transaction; more are split.
func (s *Engine) Put(ctx context.Context, queue string, ms ...store.Message) error {
	return s.do(ctx, func(ctx context.Context) error {
		if err := checkQueue(storearg.Put(queue, ms...), queue); err != nil {
			return err
		}
		return s.put(ctx, queue, ms...)
	})
}

func (s *Engine) put(ctx context.Context, queue string, ms ...store.Message) error {
	if len(ms) == 0 {
		return nil
	}
	if err := s.nameQueue(ctx, queue); err != nil {
		return err
	}
	puts := make([]put, 0, len(ms))
	seen := make(map[string]bool, len(ms))
	for i := range ms {
		p, err := s.newPut(queue, &ms[i])
		if err != nil {
			return err
		}
		if !seen[p.subject] {
			puts = append(puts, p)
		}
		seen[p.subject] = true
	}
	return s.transactAll(ctx, puts)
}

// transactAll puts messages, up to maxBatch in a transaction. It sorts them by delay,
// since the server stores them in order.
func (s *Engine) transactAll(ctx context.Context, puts []put) error {
	slices.SortStableFunc(puts, func(a, b put) int { return cmp.Compare(a.span, b.span) })
	for some := range slices.Chunk(puts, maxBatch) {
		err := s.transact(ctx, some, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

func checkQueue(err error, queue string) error {
	if err == nil && len(queue) > maxQueue {
		return fmt.Errorf("jetstream: the name of the queue has %d bytes, at most %d are allowed: %.64q…", len(queue), maxQueue, queue)
	}
	return err
}

type put struct {
	queue   string
	subject string
	span    time.Duration
	why     string
	body    []byte
	behind  uint64 // the subject's mark, or 0
	there   bool   // already in the queue
}

func (s *Engine) newPut(queue string, m *store.Message) (put, error) {
	p, err := s.encode(queue, m)
	if err != nil {
		return p, err
	}
	of := s.message(p.subject, state{}, p.why, p.body, 0)
	// When it is taken, the message must fit into a transaction with others (law D4).
	if size, most := of.Size()-len(of.Subject)+batchRoom, s.js.Conn().MaxPayload(); int64(size) > most {
		return p, fmt.Errorf("jetstream: %w: message %q needs %d bytes: the server (max_payload) takes %d",
			message.ErrRefused, m.Meta.ID, size, most)
	}
	return p, nil
}

func (s *Engine) encode(queue string, m *store.Message) (put, error) {
	b, err := body(m)
	if err != nil {
		return put{}, err
	}
	w, err := whyOf(m)
	return put{queue: queue, subject: s.queueSubject(queue) + identity(m), span: min(m.Delay, storearg.LongestDelay), why: w, body: b}, err
}

func (s *Engine) look(ctx context.Context, p *put) error {
	r, err := s.readAny(ctx, p.subject)
	if err != nil {
		return err
	}
	p.behind, p.there = 0, false
	if r != nil {
		p.behind, p.there = r.seq, r.kind != removed
	}
	return nil
}

// maxTries bounds the tries of an operation whose messages change meanwhile.
const maxTries = 100

// transact puts messages that are missing, and marks records as gone, in one transaction.
// It returns errChanged if a record has changed.
func (s *Engine) transact(ctx context.Context, puts []put, moved []*record) error {
	for try := range maxTries {
		var ms []*nats.Msg
		var queues []string // of ms
		replaced := map[string]bool{}
		for i := range puts {
			p := &puts[i]
			if p.there {
				continue
			}
			ms = append(ms, s.message(p.subject, state{kind: waiting, span: uint64(p.span)}, p.why, p.body, p.behind))
			queues = append(queues, p.queue)
			replaced[p.subject] = true
		}
		for _, r := range moved {
			if !replaced[r.subject] {
				ms = append(ms, s.message(r.subject, r.then(removed, 0), "", nil, r.seq))
			}
		}
		seq, err := s.publishAll(ctx, ms)
		if err == nil {
			for i, queue := range queues { // a transaction is published as a whole
				if ix := s.opened(queue); ix != nil {
					ix.published(seq - uint64(len(ms)-1-i))
				}
			}
			return nil
		}
		unlooked := try == 0 && errors.Is(err, errReserved) // they may all be there
		if !unlooked && !errors.Is(err, errChanged) {
			return err
		}
		errs := make([]error, len(puts)+len(moved))
		parallel.Do(len(errs), func(i int) {
			if i < len(puts) {
				errs[i] = s.look(ctx, &puts[i])
				return
			}
			r, err := s.read(ctx, moved[i-len(puts)].subject)
			isGone := err == nil && (r == nil || r.seq != moved[i-len(puts)].seq)
			if isGone {
				err = errChanged
			}
			errs[i] = err
		})
		for i, err := range errs {
			if err != nil {
				return err
			}
			if i < len(puts) && ownPut(puts[i], moved) {
				puts[i].there = false
			}
		}
	}
	return fmt.Errorf("jetstream: stream %s: gave up after %d conflicting updates", s.name, maxTries)
}

// ownPut reports whether a put replaces a moved message: it has the same subject,
// directly behind it.
func ownPut(p put, moved []*record) bool {
	for _, r := range moved {
		if r.subject == p.subject {
			return p.behind == r.seq
		}
	}
	return false
}

func (s *Engine) publishAll(ctx context.Context, ms []*nats.Msg) (uint64, error) {
	leave, err := s.admit(ctx, ms)
	if err != nil {
		return 0, err
	}
	defer leave()
	switch len(ms) {
	case 0:
		return 0, nil
	case 1:
		ack, err := s.js.PublishMsg(ctx, ms[0])
		if err != nil {
			return 0, s.published(ctx, err)
		}
		return ack.Sequence, nil
	}
	for try := 0; ; try++ {
		seq, err := s.batch(ctx, ms)
		api, _ := errors.AsType[*jetstream.APIError](err)
		// A server takes a limited number of transactions at once, and loses them at a
		// restart.
		if again := api != nil && (api.ErrorCode == errCodeBatchMissing || api.ErrorCode == errCodeTooManyBatches); !again || try == maxTries {
			if err != nil {
				err = s.published(ctx, err)
			}
			return seq, err
		}
		if err := wait.For(ctx, s.clock, time.Duration(try)*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
