package checkpointtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/weirflow/weir/checkpoint"
)

// MemoryStore keeps the last three snapshots in memory, for tests of a pipeline. It is
// safe for concurrent use.
type MemoryStore struct {
	mu        sync.Mutex
	snapshots []stored // ascending
	newest    uint64
	closed    bool
	fenced    bool // Reopen was called
}

// stored is a snapshot in the format of WriteTo.
type stored struct {
	id    uint64
	bytes []byte
}

// memoryKeeps is the default of a DirStore.
const memoryKeeps = 3

var _ checkpoint.Store = (*MemoryStore)(nil)

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{} }

// Reopen returns an open store with the content of m, as a restarted pipeline would find
// it. Unless m was closed, its methods return checkpoint.ErrFenced from now on.
func (m *MemoryStore) Reopen() *MemoryStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fenced = true
	return &MemoryStore{snapshots: slices.Clone(m.snapshots), newest: m.newest}
}

// Save implements [checkpoint.Store].
func (m *MemoryStore) Save(ctx context.Context, s *checkpoint.Snapshot) error {
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("checkpointtest: saving checkpoint %d: %w", s.ID, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return err
	}
	switch {
	case s.ID == m.newest && len(m.snapshots) > 0 && bytes.Equal(m.snapshots[len(m.snapshots)-1].bytes, b.Bytes()):
		return nil // already saved
	case s.ID <= m.newest:
		return &checkpoint.NumberError{Checkpoint: s.ID, Newest: m.newest}
	}
	m.newest = s.ID
	m.snapshots = append(m.snapshots, stored{s.ID, b.Bytes()})
	if old := len(m.snapshots) - memoryKeeps; old > 0 {
		m.snapshots = slices.Delete(m.snapshots, 0, old)
	}
	return nil
}

// usable returns the error of a closed or fenced store. Called with mu held.
func (m *MemoryStore) usable() error {
	switch {
	case m.closed:
		return checkpoint.ErrClosed
	case m.fenced:
		return checkpoint.ErrFenced
	}
	return nil
}

// Load implements [checkpoint.Store].
func (m *MemoryStore) Load(_ context.Context, id uint64) (*checkpoint.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return nil, err
	}
	for _, s := range m.snapshots {
		if s.id == id {
			return checkpoint.ReadSnapshot(bytes.NewReader(s.bytes), int64(len(s.bytes)))
		}
	}
	return nil, fmt.Errorf("%w: checkpoint %d", checkpoint.ErrNotFound, id)
}

// List implements [checkpoint.Store].
func (m *MemoryStore) List(context.Context) ([]checkpoint.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return nil, err
	}
	entries := make([]checkpoint.Entry, len(m.snapshots))
	for i, s := range m.snapshots {
		entries[i] = checkpoint.Entry{ID: s.id, Size: int64(len(s.bytes))}
	}
	return entries, nil
}

// Close implements [checkpoint.Store].
func (m *MemoryStore) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
