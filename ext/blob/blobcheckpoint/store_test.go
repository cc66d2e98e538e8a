package blobcheckpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/ext/blob/blobcheckpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

// buckets makes a new bucket of each driver.
var buckets = map[string]func(t *testing.T) *blob.Bucket{
	"memory": func(*testing.T) *blob.Bucket { return memblob.OpenBucket(nil) },
	"files": func(t *testing.T) *blob.Bucket {
		t.Helper()
		b, err := fileblob.OpenBucket(t.TempDir(), nil)
		require.NoError(t, err)
		return b
	},
}

func TestStore(t *testing.T) {
	for name, newBucket := range buckets {
		t.Run(name, func(t *testing.T) { testStore(t, newBucket) })
	}
}

func testStore(t *testing.T, newBucket func(t *testing.T) *blob.Bucket) {
	t.Helper()
	checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Setup {
		bucket, faults := openFaulty(newBucket(t))
		t.Cleanup(func() { require.NoError(t, bucket.Close()) })
		stores := blobcheckpoint.New(bucket, "checkpoints/")
		open := func() (checkpoint.Store, error) { return stores.Open(background, "a/b", 7) }
		return checkpointtest.Setup{
			Open: open, TakeOver: open, Fail: faults.fail,
			Damage: func(id uint64) error {
				return eachObject(bucket, func(key string, b []byte) error {
					if !strings.Contains(string(b), fmt.Sprintf("number %020d\n", id)) {
						return nil
					}
					b[len(b)-20] ^= 1
					return bucket.WriteAll(background, key, b, nil)
				})
			},
		}
	})
}

func eachObject(bucket *blob.Bucket, f func(key string, b []byte) error) error {
	for it := bucket.List(nil); ; {
		x, err := it.Next(background)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		b, err := bucket.ReadAll(background, x.Key)
		if err != nil {
			return err
		}
		if err := f(x.Key, b); err != nil {
			return err
		}
	}
}

func snapshot(id uint64) *checkpoint.Snapshot {
	return &checkpoint.Snapshot{ID: id, States: map[string]participant.State{"a": {{1}}}}
}

func TestEpochs(t *testing.T) {
	for name, newBucket := range buckets {
		t.Run(name, func(t *testing.T) { testEpochs(t, newBucket) })
	}
}

// Law P1: a stale owner is refused, also when its next object was removed long ago.
func testEpochs(t *testing.T, newBucket func(t *testing.T) *blob.Bucket) {
	t.Helper()
	bucket := newBucket(t)
	defer bucket.Close()
	stores := blobcheckpoint.New(bucket, "", blobcheckpoint.KeepLast(1))
	stale, err := stores.Open(background, "p", 1)
	require.NoError(t, err)
	require.NoError(t, stale.Save(background, snapshot(1)))
	owner, err := stores.Open(background, "p", 2)
	require.NoError(t, err)
	for id := range uint64(5) {
		require.NoError(t, owner.Save(background, snapshot(2+id)))
	}
	objects := 0
	require.NoError(t, eachObject(bucket, func(string, []byte) error { objects++; return nil }))
	require.Equal(t, 1, objects, "the others were removed")

	require.ErrorIs(t, stale.Save(background, snapshot(100)), checkpoint.ErrFenced)
	require.ErrorIs(t, stale.Save(background, snapshot(101)), checkpoint.ErrFenced)
	_, err = stale.List(background)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	_, err = stores.Open(background, "p", 1)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	require.ErrorContains(t, err, "epoch 2, which is higher than 1")

	latest, _, err := checkpoint.Latest(background, owner)
	require.NoError(t, err)
	require.EqualValues(t, 6, latest.ID)
	require.NoError(t, owner.Save(background, snapshot(7)))
	_, err = stores.Open(background, "", 1)
	require.ErrorContains(t, err, "empty")
}

// Law P1: a stale owner whose Save has failed is refused when it repeats it, although its
// object is there.
func TestStaleSaveIsRepeated(t *testing.T) {
	stored := 0
	for call := 1; ; call++ {
		bucket := memblob.OpenBucket(nil)
		behind, faults := openFaulty(bucket)
		stale, err := blobcheckpoint.New(behind, "", blobcheckpoint.KeepLast(1)).Open(background, "p", 1)
		require.NoError(t, err)
		owner, err := blobcheckpoint.New(bucket, "", blobcheckpoint.KeepLast(1)).Open(background, "p", 2)
		require.NoError(t, err)
		for id := range uint64(5) { // the stale owner's next number is free again
			require.NoError(t, owner.Save(background, snapshot(1+id)))
		}
		faults.fail(call)
		err = stale.Save(background, snapshot(100))
		if errors.Is(err, checkpoint.ErrFenced) {
			break // the stale owner makes fewer calls
		}
		require.ErrorIs(t, err, errTrial)
		require.NoError(t, eachObject(bucket, func(_ string, b []byte) error {
			if strings.Contains(string(b), fmt.Sprintf("number %020d\n", 100)) {
				stored++
			}
			return nil
		}))
		require.ErrorIs(t, stale.Save(background, snapshot(100)), checkpoint.ErrFenced, "call %d", call)
		require.NoError(t, bucket.Close())
	}
	require.Positive(t, stored)
}

// Law P1: an object that a stale owner writes where the owner has removed objects does
// not count as a checkpoint.
func TestCheckpointOfAStaleOwner(t *testing.T) {
	for _, id := range []uint64{3, 5, 100} { // of the owner they are 1 to 5
		t.Run(strconv.FormatUint(id, 10), func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			stores := blobcheckpoint.New(bucket, "", blobcheckpoint.KeepLast(3))
			stale, err := stores.Open(background, "p", 1)
			require.NoError(t, err)
			owner, err := stores.Open(background, "p", 2)
			require.NoError(t, err)
			for i := range uint64(5) {
				require.NoError(t, owner.Save(background, snapshot(1+i)))
			}
			s := snapshot(id)
			s.States = map[string]participant.State{"stale": {{1}}}
			require.ErrorIs(t, stale.Save(background, s), checkpoint.ErrFenced)

			next, err := stores.Open(background, "p", 3)
			require.NoError(t, err)
			entries, err := next.List(background)
			require.NoError(t, err)
			require.Len(t, entries, 3)
			for i, e := range entries {
				require.Equal(t, uint64(3+i), e.ID)
				loaded, err := next.Load(background, e.ID)
				require.NoError(t, err)
				require.Contains(t, loaded.States, "a", "checkpoint %d", e.ID)
			}
			require.NoError(t, next.Save(background, snapshot(6)))
			require.NoError(t, next.Save(background, snapshot(7)))
		})
	}
}

// A write that was given up, and ends after the store has looked for it, is not taken for
// another owner's.
func TestLateWrite(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	behind, faults := openFaulty(bucket)
	defer behind.Close()
	s, err := blobcheckpoint.New(behind, "").Open(background, "p", 1)
	require.NoError(t, err)
	faults.delays = true
	faults.fail(1)
	require.ErrorIs(t, s.Save(background, snapshot(1)), errTrial)
	require.NoError(t, s.Save(background, snapshot(2)))
	entries, err := s.List(background)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

// The number that a store takes may have been taken and removed since it looked. Then it
// looks again.
func TestOpenSlowly(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	behind, faults := openFaulty(bucket)
	defer behind.Close()
	other := blobcheckpoint.New(bucket, "", blobcheckpoint.KeepLast(1))
	var quick checkpoint.Store
	faults.late = func() (err error) { // after it has looked
		if quick, err = other.Open(background, "p", 1); err != nil {
			return err
		}
		for id := range uint64(5) {
			err = errors.Join(err, quick.Save(background, snapshot(1+id)))
		}
		return err
	}
	slow, err := blobcheckpoint.New(behind, "").Open(background, "p", 1)
	require.NoError(t, err)
	require.ErrorIs(t, quick.Save(background, snapshot(6)), checkpoint.ErrFenced)
	latest, _, err := checkpoint.Latest(background, slow)
	require.NoError(t, err)
	require.EqualValues(t, 5, latest.ID)
	require.NoError(t, slow.Save(background, snapshot(6)))
}

// Storage that does not know If-None-Match is refused, before anything is saved.
func TestOverwritingStorage(t *testing.T) {
	behind, faults := openFaulty(memblob.OpenBucket(nil))
	defer behind.Close()
	faults.overwrites = true
	_, err := blobcheckpoint.New(behind, "").Open(background, "p", 1)
	require.ErrorContains(t, err, `opening "p": the storage overwrites an object`)
}

// Of stores that are opened at once, one has the pipeline: numbers grow along the
// objects.
func TestOpenAtOnce(t *testing.T) {
	for name, newBucket := range map[string]func(t *testing.T) *blob.Bucket{"memory": buckets["memory"]} { // the one for files is not atomic
		t.Run(name, func(t *testing.T) {
			bucket := newBucket(t)
			defer bucket.Close()
			stores := blobcheckpoint.New(bucket, "x")
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					s, err := stores.Open(background, "p", 0)
					if err != nil {
						t.Error(err)
						return
					}
					for id := range uint64(10) {
						_ = s.Save(background, snapshot(uint64(i)*100+id+1)) // most are fenced, or see a higher number
					}
				})
			}
			all.Wait()
			last, err := stores.Open(background, "p", 0)
			require.NoError(t, err)
			require.NoError(t, last.Save(background, snapshot(1000)))
			_, skipped, err := checkpoint.Latest(background, last)
			require.NoError(t, err)
			require.Empty(t, skipped)
		})
	}
}
