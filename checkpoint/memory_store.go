package checkpoint

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
)

// MemoryStore keeps snapshots in memory, for tests: they end with the process. Safe for concurrent use.
type MemoryStore struct {
	keep int

	mu        sync.Mutex
	snapshots []*Snapshot // ascending
	newest    uint64
	closed    bool
	fenced    bool // another one has taken over
}

var _ Store = (*MemoryStore)(nil)

// NewMemoryStore returns an empty store.
func NewMemoryStore(opts ...StoreOption) *MemoryStore {
	return &MemoryStore{keep: newStoreSettings("NewMemoryStore", opts).keep}
}

// Reopen returns an open store with the content of m: what a restarted pipeline would find. It takes over: unless m was
// closed, its methods return [ErrFenced] from now on.
func (m *MemoryStore) Reopen() *MemoryStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fenced = true
	return &MemoryStore{keep: m.keep, snapshots: slices.Clone(m.snapshots), newest: m.newest}
}

// Save implements [Store].
func (m *MemoryStore) Save(ctx context.Context, s *Snapshot) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("checkpoint: saving checkpoint %d: %w", s.ID, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return err
	}
	switch {
	case s.ID == m.newest && len(m.snapshots) > 0 && reflect.DeepEqual(m.snapshots[len(m.snapshots)-1], s.clone()):
		return nil // again
	case s.ID <= m.newest:
		return &NumberError{Checkpoint: s.ID, Newest: m.newest}
	}
	m.newest = s.ID
	m.snapshots = append(m.snapshots, s.clone())
	if old := len(m.snapshots) - m.keep; old > 0 {
		m.snapshots = slices.Delete(m.snapshots, 0, old)
	}
	return nil
}

// usable is called with mu held.
func (m *MemoryStore) usable() error {
	switch {
	case m.closed:
		return ErrStoreClosed
	case m.fenced:
		return ErrFenced
	}
	return nil
}

// Load implements [Store].
func (m *MemoryStore) Load(_ context.Context, id uint64) (*Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return nil, err
	}
	for _, s := range m.snapshots {
		if s.ID == id {
			return s.clone(), nil
		}
	}
	return nil, fmt.Errorf("%w: checkpoint %d", ErrNotFound, id)
}

// List implements [Store]. The sizes are those of the states.
func (m *MemoryStore) List(context.Context) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return nil, err
	}
	entries := make([]Entry, len(m.snapshots))
	for i, s := range m.snapshots {
		entries[i] = Entry{ID: s.ID, Size: s.Size()}
	}
	return entries, nil
}

// Close implements [Store].
func (m *MemoryStore) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
