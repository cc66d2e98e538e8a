package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
)

func TestMemoryStoreConforms(t *testing.T) {
	checkpointtest.RunStore(t, func(*testing.T) checkpointtest.Setup {
		var m *checkpointtest.MemoryStore
		open := func() (checkpoint.Store, error) {
			if m == nil {
				m = checkpointtest.NewMemoryStore()
			} else {
				m = m.Reopen()
			}
			return m, nil
		}
		return checkpointtest.Setup{Open: open, TakeOver: open}
	})
}

func TestDirStoreConforms(t *testing.T) {
	damages := map[string]func(path string) error{
		"flipped bit": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 0x10
			return os.WriteFile(path, b, 0o600)
		},
		"truncated": func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()-1)
		},
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"zeros":   func(path string) error { return os.WriteFile(path, make([]byte, 5000), 0o600) },
		"another checkpoint": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			_, err = (&checkpoint.Snapshot{ID: 99}).WriteTo(f)
			return errors.Join(err, f.Close())
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the test mostly waits for the disk
			checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Setup {
				t.Helper()
				dir := filepath.Join(t.TempDir(), "new", "checkpoints")
				return checkpointtest.Setup{
					Open: func() (checkpoint.Store, error) {
						d, err := files.OpenDir(dir)
						if err != nil {
							return nil, err
						}
						return d.Quiet(), nil
					},
					Damage: func(id uint64) error { return damage(filepath.Join(dir, fmt.Sprintf("checkpoint-%020d.weir", id))) },
				}
			})
		})
	}
}

// The rules on a disk that fails.
func TestDirStoreConformsOnATroubledDisk(t *testing.T) {
	checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Setup {
		t.Helper()
		disk := files.NewTroubledDisk()
		return checkpointtest.Setup{Open: disk.OpenStore, Fail: disk.Fail}
	})
}

// On a system without locks, a run detects by newer checkpoints that another run has
// taken over (law P1).
func TestDirStoreIsFencedByNewerCheckpoints(t *testing.T) {
	ctx := t.Context()
	disk := files.NewTroubledDisk()
	loser, err := disk.OpenStore()
	require.NoError(t, err)
	require.NoError(t, loser.Save(ctx, &checkpoint.Snapshot{ID: 1}))
	owner, err := disk.OpenStore()
	require.NoError(t, err)
	require.NoError(t, owner.Save(ctx, &checkpoint.Snapshot{ID: 2, Kind: checkpoint.Suspend}))
	for _, id := range []uint64{1, 2, 3, 4} {
		require.ErrorIs(t, loser.Save(ctx, &checkpoint.Snapshot{ID: id}), checkpoint.ErrFenced)
	}
	s, _, err := checkpoint.Latest(ctx, owner)
	require.NoError(t, err)
	require.Equal(t, checkpoint.Suspend, s.Kind)
	require.NoError(t, owner.Save(ctx, &checkpoint.Snapshot{ID: 3}))
	require.NoError(t, loser.Close())
	require.NoError(t, owner.Close())
}

// failing is a store whose Load fails.
type failing struct {
	checkpoint.Store
	errs map[uint64]error
}

func (f failing) Load(ctx context.Context, id uint64) (*checkpoint.Snapshot, error) {
	if err := f.errs[id]; err != nil {
		return nil, err
	}
	return f.Store.Load(ctx, id)
}

// Latest skips only damaged snapshots, not snapshots that may be readable later or by a
// newer weir.
func TestLatestSkipsNothingButDamage(t *testing.T) {
	ctx := t.Context()
	m := checkpointtest.NewMemoryStore()
	for id := uint64(1); id <= 3; id++ {
		require.NoError(t, m.Save(ctx, &checkpoint.Snapshot{ID: id}))
	}
	damage := &checkpoint.CorruptError{Checkpoint: 3, Reason: "test"}
	version := &checkpoint.VersionError{Checkpoint: 2, Version: 9, Supported: 1}

	s, skipped, err := checkpoint.Latest(ctx, failing{m, map[uint64]error{3: damage}})
	require.NoError(t, err)
	assert.EqualValues(t, 2, s.ID)
	assert.Equal(t, []*checkpoint.CorruptError{damage}, skipped)

	for _, trouble := range []error{version, os.ErrPermission} {
		s, skipped, err = checkpoint.Latest(ctx, failing{m, map[uint64]error{3: damage, 2: trouble}})
		require.ErrorIs(t, err, trouble)
		assert.Nil(t, s)
		assert.Equal(t, []*checkpoint.CorruptError{damage}, skipped)
	}
}

// forgetfulStore lists snapshots that it cannot load.
type forgetfulStore struct{ *checkpointtest.MemoryStore }

func (forgetfulStore) Load(_ context.Context, id uint64) (*checkpoint.Snapshot, error) {
	return nil, fmt.Errorf("%w: checkpoint %d", checkpoint.ErrNotFound, id)
}

// If a listed checkpoint is missing, the run fails: a fresh start would undo published
// elements.
func TestListedCheckpointThatIsNotThere(t *testing.T) {
	store := checkpointtest.NewMemoryStore()
	require.NoError(t, store.Save(t.Context(), &checkpoint.Snapshot{ID: 1}))
	_, err := checkpoint.NewCoordinator(forgetfulStore{store})
	require.ErrorContains(t, err, "checkpoint 1 is listed, but")
	require.NotErrorIs(t, err, checkpoint.ErrNotFound)
}
