package checkpointtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/checkpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is storage in memory whose stores are changed by wrap.
func memory(wrap func(checkpoint.Store) checkpoint.Store) Setup {
	var m *MemoryStore
	broken := map[uint64]bool{}
	open := func() (checkpoint.Store, error) {
		if m == nil {
			m = NewMemoryStore()
		} else {
			m = m.Reopen()
		}
		return wrap(&damageable{Store: m, broken: broken}), nil
	}
	return Setup{Open: open, TakeOver: open, Damage: func(id uint64) error { broken[id] = true; return nil }}
}

// damageable is a sound store whose snapshots can be damaged.
type damageable struct {
	checkpoint.Store
	broken map[uint64]bool
}

func (d *damageable) Load(ctx context.Context, id uint64) (*checkpoint.Snapshot, error) {
	if d.broken[id] {
		return nil, &checkpoint.CorruptError{Checkpoint: id, Reason: "damaged by the test"}
	}
	return d.Store.Load(ctx, id)
}

func TestRunStoreAcceptsSoundStores(t *testing.T) {
	RunStore(t, func(*testing.T) Setup { return memory(func(s checkpoint.Store) checkpoint.Store { return s }) })
	t.Run("without damage", func(t *testing.T) {
		RunStore(t, func(*testing.T) Setup {
			p := memory(func(s checkpoint.Store) checkpoint.Store { return s })
			p.Damage, p.TakeOver = nil, nil
			return p
		})
	})
}

// wrong is a sound store, except that its functions replace methods.
type wrong struct {
	checkpoint.Store
	save  func(next checkpoint.Store, ctx context.Context, s *checkpoint.Snapshot) error
	load  func(next checkpoint.Store, id uint64) (*checkpoint.Snapshot, error)
	list  func(next checkpoint.Store) ([]checkpoint.Entry, error)
	close func(next checkpoint.Store) error
}

func (w *wrong) Save(ctx context.Context, s *checkpoint.Snapshot) error {
	if w.save != nil {
		return w.save(w.Store, ctx, s)
	}
	return w.Store.Save(ctx, s)
}

func (w *wrong) Load(ctx context.Context, id uint64) (*checkpoint.Snapshot, error) {
	if w.load != nil {
		return w.load(w.Store, id)
	}
	return w.Store.Load(ctx, id)
}

func (w *wrong) List(ctx context.Context) ([]checkpoint.Entry, error) {
	if w.list != nil {
		return w.list(w.Store)
	}
	return w.Store.List(ctx)
}

func (w *wrong) Close() error {
	if w.close != nil {
		return w.close(w.Store)
	}
	return w.Store.Close()
}

// For each rule there is a store that breaks it.
func TestRunStoreFindsWrongStores(t *testing.T) {
	ctx := context.Background()
	last := map[checkpoint.Store]*checkpoint.Snapshot{}
	tried := map[checkpoint.Store]uint64{}
	for rule, w := range map[string]wrong{
		"an empty store returns ErrNotFound": {load: func(s checkpoint.Store, id uint64) (*checkpoint.Snapshot, error) {
			got, err := s.Load(ctx, id)
			if errors.Is(err, checkpoint.ErrNotFound) {
				return &checkpoint.Snapshot{ID: id}, nil
			}
			return got, err
		}},
		"Load returns the saved snapshot": {load: func(s checkpoint.Store, id uint64) (*checkpoint.Snapshot, error) {
			got, err := s.Load(ctx, id)
			if err == nil {
				delete(got.States, "nothing")
			}
			return got, err
		}},
		"many pieces and large states": {load: func(s checkpoint.Store, id uint64) (*checkpoint.Snapshot, error) {
			got, err := s.Load(ctx, id)
			if err == nil && got.Size() > 1<<20 {
				got.States["mixed"][0][5] ^= 1
			}
			return got, err
		}},
		"a snapshot belongs to the caller": {
			save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
				last[s] = snap
				return s.Save(ctx, snap)
			},
			load: func(s checkpoint.Store, id uint64) (*checkpoint.Snapshot, error) {
				if l := last[s]; l != nil {
					return l, nil
				}
				return s.Load(ctx, id)
			},
		},
		"numbers only grow": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			err := s.Save(ctx, snap)
			if _, ok := errors.AsType[*checkpoint.NumberError](err); ok {
				return nil
			}
			return err
		}},
		"the same snapshot again": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			if got, err := s.Load(ctx, snap.ID); err == nil {
				return &checkpoint.NumberError{Checkpoint: snap.ID, Newest: got.ID}
			}
			return s.Save(ctx, snap)
		}},
		"a failed Save is repeated": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			if tried[s] == snap.ID {
				return &checkpoint.NumberError{Checkpoint: snap.ID, Newest: snap.ID}
			}
			tried[s] = snap.ID
			return s.Save(ctx, snap)
		}},
		"the loser of a takeover is fenced": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			err := s.Save(ctx, snap)
			if errors.Is(err, checkpoint.ErrFenced) {
				return &checkpoint.NumberError{Checkpoint: snap.ID, Newest: snap.ID}
			}
			return err
		}},
		"invalid snapshots are refused": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			if snap.Validate() != nil {
				return nil
			}
			return s.Save(ctx, snap)
		}},
		"the newest snapshots are kept": {list: func(s checkpoint.Store) ([]checkpoint.Entry, error) {
			entries, err := s.List(ctx)
			return entries[max(0, len(entries)-2):], err
		}},
		"a cancelled Save does not change the store": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			return errors.Join(s.Save(context.WithoutCancel(ctx), snap), context.Cause(ctx))
		}},
		"a reopened store continues": {close: func(s checkpoint.Store) error {
			return nil
		}, list: func(s checkpoint.Store) ([]checkpoint.Entry, error) {
			entries, err := s.List(ctx)
			slices.Reverse(entries)
			return entries, err
		}},
		"a closed store returns ErrClosed": {close: func(checkpoint.Store) error { return nil }},
		"concurrent use": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			err := s.Save(ctx, snap)
			if _, ok := errors.AsType[*checkpoint.NumberError](err); ok {
				return nil
			}
			return err
		}},
		"damage is detected": {load: func(s checkpoint.Store, id uint64) (*checkpoint.Snapshot, error) {
			return s.(*damageable).Store.Load(ctx, id)
		}},
		"damaged numbers are not reused": {save: func(s checkpoint.Store, ctx context.Context, snap *checkpoint.Snapshot) error {
			if s.(*damageable).broken[snap.ID] {
				return nil
			}
			return s.Save(ctx, snap)
		}},
		"a store with only damaged snapshots is not empty": {list: func(s checkpoint.Store) ([]checkpoint.Entry, error) {
			entries, err := s.List(ctx)
			return slices.DeleteFunc(entries, func(e checkpoint.Entry) bool { return s.(*damageable).broken[e.ID] }), err
		}},
	} {
		t.Run(rule, func(t *testing.T) {
			for _, r := range rules {
				if r.name != rule {
					continue
				}
				err := r.check(memory(func(s checkpoint.Store) checkpoint.Store {
					w := w
					w.Store = s
					return &w
				}))
				require.Error(t, err)
				assert.NotContains(t, err.Error(), "%!")
				t.Log(err)
				return
			}
			t.Fatal("there is no such rule")
		})
	}
	assert.Len(t, rules, 17, "a new rule needs a store that breaks it")
}

func TestRunStoreLooksAtKinds(t *testing.T) {
	err := savedIsLoaded(memory(func(s checkpoint.Store) checkpoint.Store {
		return &wrong{Store: s, load: func(s checkpoint.Store, id uint64) (*checkpoint.Snapshot, error) {
			got, err := s.Load(t.Context(), id)
			if err == nil {
				got.Kind = checkpoint.Periodic
			}
			return got, err
		}}
	}))
	require.ErrorContains(t, err, "got the kind periodic, want drain")
}
