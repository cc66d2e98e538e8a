package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
)

// locks are messages in an engine's stream. Time is the server's.
type locks struct{ s *Engine }

// Locks implements [store.Keeper]. They end with the engine. A lock's name has at most
// 1,024 bytes.
func (s *Engine) Locks() lock.Locks { return locks{s} }

// keepName is how long the server keeps a name after its last lease.
const keepName = 24 * time.Hour

type holding struct {
	Name  string        `json:"name"`
	Owner string        `json:"owner"` // empty if the lock is free
	Fence uint64        `json:"fence"`
	Lease time.Duration `json:"lease"` // in ns, from when the server stored this
}

type lockState struct {
	holding
	revision uint64 // 0 if the lock has no message
	until    time.Time
}

func (l locks) subject(name string) string { return l.s.prefix + lockToken + token(name) }

func (l locks) get(ctx context.Context, name string) (h lockState, err error) {
	m, err := l.s.last(ctx, l.subject(name))
	if m == nil {
		return h, err
	}
	if err := json.Unmarshal(m.Data, &h.holding); err != nil {
		return h, &otherError{fmt.Errorf("jetstream: stream %s: message %d is not a lock: %w", l.s.name, m.Sequence, err)}
	}
	h.revision, h.until = m.Sequence, m.Time.Add(h.Lease)
	return h, nil
}

// put replaces a revision; ok is false if it has changed.
func (l locks) put(ctx context.Context, h holding, revision uint64) (ok bool, err error) {
	b, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	m := &nats.Msg{Subject: l.subject(h.Name), Data: b, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(revision, 10)},
		jetstream.ExpectedStreamHeader:      {l.s.name},
	}}
	if h.Lease < forever {
		m.Header.Set(jetstream.MsgTTLHeader, (h.Lease + keepName).String()) // law W3
	}
	_, err = l.s.js.PublishMsg(ctx, m)
	if err == nil {
		return true, nil
	}
	err = l.s.published(ctx, err)
	if errors.Is(err, errChanged) {
		return false, nil
	}
	return false, err
}

func checkName(name string) error {
	if len(name) > maxQueue {
		return fmt.Errorf("jetstream: the name of the lock has %d bytes, at most %d are allowed: %.64q…", len(name), maxQueue, name)
	}
	return nil
}

func (l locks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (g lock.Grant, err error) {
	if err := errors.Join(storearg.Lock(name, owner, lease), checkName(name)); err != nil {
		return g, err
	}
	err = l.s.do(ctx, func(ctx context.Context) error {
		for {
			h, err := l.get(ctx, name)
			if err != nil {
				return err
			}
			if h.Owner != "" {
				now, err := l.s.now(ctx)
				if err != nil {
					return err
				}
				if rest := h.until.Sub(instant(now)); rest > 0 {
					return &lock.Holding{Grant: lock.Grant{Name: name, Owner: h.Owner}, For: rest}
				}
			}
			if h.revision == 0 { // a forgotten name had no fence above its message's sequence number
				info, err := l.s.stream.Info(ctx)
				if err != nil {
					return fmt.Errorf("jetstream: stream %s: %w", l.s.name, err)
				}
				h.Fence = info.State.LastSeq
			}
			next := lock.Grant{Name: name, Owner: owner, Fence: h.Fence + 1}
			if ok, err := l.put(ctx, holding{name, owner, next.Fence, lease}, h.revision); err != nil || ok {
				g = next
				return err
			}
		}
	})
	return g, err
}

func (l locks) change(ctx context.Context, g lock.Grant, to holding) error {
	if g.Name == "" || g.Owner == "" || checkName(g.Name) != nil {
		return lock.ErrLost
	}
	return l.s.do(ctx, func(ctx context.Context) error {
		for {
			h, err := l.get(ctx, g.Name)
			if err != nil {
				return err
			}
			if h.Owner != g.Owner || h.Fence != g.Fence {
				return lock.ErrLost
			}
			if ok, err := l.put(ctx, to, h.revision); err != nil || ok {
				return err
			}
		}
	})
}

func (l locks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if err := storearg.Extend(d); err != nil {
		return err
	}
	return l.change(ctx, g, holding{g.Name, g.Owner, g.Fence, d})
}

func (l locks) Release(ctx context.Context, g lock.Grant) error {
	return l.change(ctx, g, holding{g.Name, "", g.Fence, 0})
}

// Held implements [lock.Locks]. It reads all locks.
func (l locks) Held(ctx context.Context, prefix string) (list []lock.Holding, err error) {
	err = l.s.do(ctx, func(ctx context.Context) error {
		names, err := l.s.textsOf(ctx, l.s.prefix+lockToken+"*")
		if err != nil {
			return err
		}
		now, err := l.s.now(ctx)
		if err != nil {
			return err
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
		all := make([]lockState, len(names))
		errs := make([]error, len(names))
		parallel.Do(len(names), func(i int) {
			all[i], errs[i] = l.get(ctx, names[i])
			errs[i] = l.s.ignoreOther(errs[i])
		})
		for _, h := range all {
			if rest := h.until.Sub(instant(now)); h.Owner != "" && rest > 0 {
				list = append(list, lock.Holding{Grant: lock.Grant{Name: h.Name, Owner: h.Owner, Fence: h.Fence}, For: rest})
			}
		}
		return errors.Join(errs...)
	})
	return list, err
}
