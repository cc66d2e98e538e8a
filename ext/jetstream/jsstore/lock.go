package jsstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// Locks are locks in a key-value bucket, each under a key of its own. Time is the server's. Names have at most 1,024 bytes. The
// bucket must have no TTL: a fencing number would begin anew. Safe for concurrent use.
type Locks struct {
	kv    jetstream.KeyValue
	clock clock.Clock
}

var _ lock.Locks = (*Locks)(nil)

// NewLocks returns the locks in a bucket. It panics if kv is nil.
func NewLocks(kv jetstream.KeyValue) *Locks {
	guard.RefuseNil("jsstore: NewLocks", "key-value bucket", kv)
	return &Locks{kv, clock.New()}
}

// holding is what a key has.
type holding struct {
	Name  string        `json:"name"`
	Owner string        `json:"owner"` // "": it is free
	Fence uint64        `json:"fence"`
	Lease time.Duration `json:"lease"` // in ns, from when the server had this
}

// held is a key and its revision.
type held struct {
	holding
	revision uint64 // 0: there is none
	until    time.Time
}

func key(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

func (l *Locks) get(ctx context.Context, key string) (h held, err error) {
	e, err := l.kv.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return h, nil
	case err != nil:
		return h, l.failed(ctx, err)
	}
	if err := json.Unmarshal(e.Value(), &h.holding); err != nil {
		return h, fmt.Errorf("jsstore: bucket %s: key %s is no lock: %w", l.kv.Bucket(), key, err)
	}
	h.revision, h.until = e.Revision(), e.Created().Add(h.Lease)
	return h, nil
}

// put replaces a revision; ok is false if it is not there any more.
func (l *Locks) put(ctx context.Context, h holding, revision uint64) (ok bool, err error) {
	b, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	_, err = l.kv.Update(ctx, key(h.Name), b, revision)
	if pubs.Moved(err) || errors.Is(err, jetstream.ErrKeyExists) {
		return false, nil
	}
	return err == nil, l.failed(ctx, err)
}

func (l *Locks) failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("jsstore: bucket %s: %w", l.kv.Bucket(), err)
}

// now returns the server's time.
func (l *Locks) now(ctx context.Context) (time.Time, error) {
	status, err := l.kv.Status(ctx)
	if err != nil {
		return time.Time{}, l.failed(ctx, err)
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return time.Time{}, fmt.Errorf("jsstore: bucket %s: the status is a %T, which has no time", l.kv.Bucket(), status)
	}
	return bucket.StreamInfo().TimeStamp, nil
}

func checkName(name string) error {
	if len(name) > maxQueue {
		return fmt.Errorf("jsstore: the name of the lock has %d bytes, at most %d are allowed: %.64q…", len(name), maxQueue, name)
	}
	return nil
}

// Acquire implements [lock.Locks].
func (l *Locks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if err := errors.Join(lock.Check(name, owner, lease), checkName(name)); err != nil {
		return lock.Grant{}, err
	}
	for {
		h, err := l.get(ctx, key(name))
		if err != nil {
			return lock.Grant{}, err
		}
		if h.Owner != "" {
			now, err := l.now(ctx)
			if err != nil {
				return lock.Grant{}, err
			}
			if h.until.After(now) {
				return lock.Grant{}, &lock.HeldError{Name: name, Owner: h.Owner, For: h.until.Sub(now)}
			}
		}
		g := lock.Grant{Name: name, Owner: owner, Fence: h.Fence + 1}
		if ok, err := l.put(ctx, holding{name, owner, g.Fence, lease}, h.revision); err != nil || ok {
			return g, err
		}
	}
}

// change changes a grant that is valid.
func (l *Locks) change(ctx context.Context, g lock.Grant, to holding) error {
	if g.Name == "" || g.Owner == "" || checkName(g.Name) != nil {
		return lock.ErrLost
	}
	for tries := 0; ; tries++ {
		h, err := l.get(ctx, key(g.Name))
		if err != nil {
			return err
		}
		if h.Fence < g.Fence && tries < maxTries { // the server is behind: fencing numbers only rise
			if err := wait.For(ctx, l.clock, lookAgain); err != nil {
				return err
			}
			continue
		}
		if h.Owner != g.Owner || h.Fence != g.Fence {
			return lock.ErrLost
		}
		if ok, err := l.put(ctx, to, h.revision); err != nil || ok {
			return err
		}
	}
}

// Extend implements [lock.Locks].
func (l *Locks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if err := lock.CheckLease(d); err != nil {
		return err
	}
	return l.change(ctx, g, holding{g.Name, g.Owner, g.Fence, d})
}

// Release implements [lock.Locks].
func (l *Locks) Release(ctx context.Context, g lock.Grant) error {
	return l.change(ctx, g, holding{g.Name, "", g.Fence, 0})
}

// Held implements [lock.Locks]. It reads all keys.
func (l *Locks) Held(ctx context.Context, prefix string) ([]lock.Holding, error) {
	keys, err := l.kv.Keys(ctx)
	switch {
	case errors.Is(err, jetstream.ErrNoKeysFound):
		return nil, nil
	case err != nil:
		return nil, l.failed(ctx, err)
	}
	now, err := l.now(ctx)
	if err != nil {
		return nil, err
	}
	keys = slices.DeleteFunc(keys, func(k string) bool {
		name, err := base64.RawURLEncoding.DecodeString(k)
		return err != nil || !strings.HasPrefix(string(name), prefix)
	})
	all := make([]held, len(keys))
	errs := make([]error, len(keys))
	parallel.Do(len(keys), func(i int) { all[i], errs[i] = l.get(ctx, keys[i]) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var list []lock.Holding
	for _, h := range all {
		if h.Owner != "" && h.until.After(now) {
			list = append(list, lock.Holding{Grant: lock.Grant{Name: h.Name, Owner: h.Owner, Fence: h.Fence}, For: h.until.Sub(now)})
		}
	}
	slices.SortFunc(list, func(a, b lock.Holding) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}
