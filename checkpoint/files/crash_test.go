package files

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/testing/crashfs"
	"github.com/weirflow/weir/internal/testing/suite"
)

// These tests check DirStore's order of writes. A life of a store makes the directory,
// saves snapshots, removes old snapshots, closes the store and opens it again. Before
// every call that changes the disk, the power is cut in every way that package crashfs
// knows, and the process is killed and restarted.

const crashDir = "/var/lib/weir/lookup"

// life is the life of a store.
type life struct {
	fs    *crashfs.FS
	keep  int
	saved []uint64 // must be found: Save has returned nil, or a restart has resumed from it
	maybe []uint64 // may be found: Save is running or has failed
	lie   func(crashfs.Call) bool
	kills bool // kill the process at every step, instead of cutting the power

	points int
	images map[string]bool // disks that were checked, to skip duplicates
	broken error           // the first violation
}

func newLife(keep int) *life {
	fsys := crashfs.New()
	// All directories but the last ones are durable.
	if err := errors.Join(fsys.Mkdir("/var", 0o755), fsys.Mkdir("/var/lib", 0o755)); err != nil {
		panic(err)
	}
	fsys.Settle()
	l := &life{fs: fsys, keep: keep, lie: func(crashfs.Call) bool { return false }, images: map[string]bool{}}
	return l
}

// crashSnapshot returns the snapshot that is saved under a number. It is short, since
// writes are torn at every byte.
func crashSnapshot(id uint64) *checkpoint.Snapshot {
	return &checkpoint.Snapshot{
		ID:   id,
		Time: time.Unix(1_700_000_000+int64(id), 5).UTC(),
		States: map[string]participant.State{
			"lookup": {[]byte(fmt.Sprintf("elements of %d", id)), []byte("!")},
			"source": {[]byte{byte(id), 0, 0xff}},
		},
	}
}

func (l *life) open(fsys *crashfs.FS) (*DirStore, error) {
	d, err := openDir(fsys, crashDir)
	if d != nil {
		d.LogTo(quiet())
		d.KeepLast(l.keep)
		d.buffer = 64 // several writes for a file
	}
	return d, err
}

// newest returns the newest number that must be found, or 0.
func (l *life) newest() uint64 {
	if len(l.saved) == 0 {
		return 0
	}
	return l.saved[len(l.saved)-1]
}

// look opens the store on a disk, checks that it has the snapshots that must be found,
// and returns the numbers of all its snapshots.
func (l *life) look(fsys *crashfs.FS) (found uint64, d *DirStore, err error) {
	ctx := context.Background()
	d, err = l.open(fsys)
	if err != nil {
		return 0, nil, fmt.Errorf("opening: %w", err)
	}
	s, skipped, err := checkpoint.Latest(ctx, d)
	switch {
	case len(skipped) > 0:
		return 0, d, fmt.Errorf("there is garbage: %v", skipped)
	case errors.Is(err, checkpoint.ErrNotFound):
		if l.newest() != 0 {
			return 0, d, fmt.Errorf("nothing is left of %v", l.saved)
		}
		return 0, d, nil
	case err != nil:
		return 0, d, fmt.Errorf("loading: %w", err)
	case s.ID != l.newest() && (s.ID < l.newest() || !slices.Contains(l.maybe, s.ID)):
		return 0, d, fmt.Errorf("found %d, saved %v, maybe saved %v", s.ID, l.saved, l.maybe)
	}

	// The newest snapshots, as many as are kept, must be whole.
	want := slices.Clone(l.saved)
	if s.ID != l.newest() {
		want = append(want, s.ID)
	}
	want = want[max(0, len(want)-l.keep):]
	entries, err := d.List(ctx)
	if err != nil {
		return 0, d, err
	}
	for _, id := range want {
		if !slices.ContainsFunc(entries, func(e checkpoint.Entry) bool { return e.ID == id }) {
			return 0, d, fmt.Errorf("%d is gone: found %v, saved %v, maybe saved %v", id, entries, l.saved, l.maybe)
		}
	}
	for _, e := range entries {
		s, err := d.Load(ctx, e.ID)
		if err != nil {
			return 0, d, fmt.Errorf("loading %d of %v: %w", e.ID, entries, err)
		}
		if !reflect.DeepEqual(s, clone(crashSnapshot(e.ID))) {
			return 0, d, fmt.Errorf("%d is not what was saved: %v", e.ID, s)
		}
	}
	return s.ID, d, nil
}

// diskKey returns a key that differs for different disks.
func diskKey(prefix string, fsys *crashfs.FS) string {
	files := fsys.Files()
	b := []byte(prefix)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		b = append(append(append(append(b, 0, '/'), path...), 0), files[path]...)
	}
	return string(b)
}

// cut cuts the power now, in every way.
func (l *life) cut(fsys *crashfs.FS, where string) {
	prefix := fmt.Sprint(l.saved, l.maybe, l.keep)
	for image := range fsys.Images() {
		if l.broken != nil {
			return
		}
		key := diskKey(prefix, image)
		if l.images[key] {
			continue
		}
		l.images[key] = true
		if _, _, err := l.look(image); err != nil {
			l.broken = fmt.Errorf("power cut %s: %w\ndisk: %v", where, err, slices.Sorted(maps.Keys(image.Files())))
		}
	}
}

// kill kills the process now, restarts it, and then cuts the power at every step. The
// restarted process resumes from the newest snapshot, which must be found from then on,
// and saves another.
func (l *life) kill(where string) {
	if l.broken != nil {
		return
	}
	after := *l
	after.saved, after.maybe = slices.Clone(l.saved), slices.Clone(l.maybe)
	after.fs = l.fs.Clone()
	after.fs.FewTears()
	after.points, after.kills = 0, false
	next := max(0, l.newest(), slices.Max(append(l.maybe, 0))) + 1
	after.observe(where+", restarted", func() error {
		found, d, err := after.look(after.fs)
		if err != nil || after.broken != nil {
			return err
		}
		if found != after.newest() {
			after.saved = append(after.saved, found)
		}
		after.cut(after.fs, where+", resumed")
		return after.save(d, next)
	})
	l.points, l.broken = l.points+after.points, after.broken
}

// observe runs a part of the life, and crashes before every change and at the end.
func (l *life) observe(what string, run func() error) {
	if l.broken != nil {
		return
	}
	crash := l.kill
	if !l.kills {
		crash = func(where string) { l.cut(l.fs, where) }
	}
	l.fs.OnCall(func(c crashfs.Call) *crashfs.Fault {
		if c.Changes() && l.broken == nil {
			l.points++
			crash(fmt.Sprintf("%s, before %v", what, c))
		}
		if l.lie(c) {
			return &crashfs.Fault{}
		}
		return nil
	})
	err := run()
	l.fs.OnCall(nil)
	if err != nil && l.broken == nil {
		l.broken = fmt.Errorf("%s: %w", what, err)
	}
	l.points++
	crash(what + ", at the end")
}

func (l *life) save(d *DirStore, id uint64) error {
	l.maybe = append(l.maybe, id)
	err := d.Save(context.Background(), crashSnapshot(id))
	if err == nil {
		l.saved = append(l.saved, id)
	}
	return err
}

// live runs the whole life: it opens the store twice and saves, then opens it with a
// smaller KeepLast, so that pruning removes several snapshots.
func (l *life) live() {
	var id uint64
	for _, keep := range []int{l.keep, l.keep, 1} {
		l.keep = keep
		var d *DirStore
		l.observe(fmt.Sprintf("opening after %d", id), func() (err error) {
			d, err = l.open(l.fs)
			return err
		})
		for range 2 {
			id += 2 // numbers may leave gaps
			l.observe(fmt.Sprintf("saving %d", id), func() error { return l.save(d, id) })
		}
		l.observe(fmt.Sprintf("closing after %d", id), func() error { return d.Close() })
	}
}

// A power cut or a kill at any time leaves the previous snapshots whole, with or without
// the new snapshot.
func TestDirStoreSurvivesEveryCrash(t *testing.T) {
	for keep := 1; keep <= 3; keep++ {
		if (suite.Race || !suite.Full()) && keep != 2 {
			continue
		}
		for _, split := range []bool{false, true} {
			for _, kills := range []bool{false, true} {
				t.Run(fmt.Sprintf("keep=%d/splitRenames=%t/kills=%t", keep, split, kills), func(t *testing.T) {
					l := newLife(keep)
					if split {
						l.fs.SplitRenames()
						l.fs.FewTears() // the runs with whole renames use all tears
					}
					l.kills = kills
					l.live()
					require.NoError(t, l.broken)
					t.Logf("%d crash points, %d different disks", l.points, len(l.images))
				})
			}
		}
	}
}

// Every sync is needed: if any is left out, a check fails. The test distinguishes
// syncs by their purpose, to detect a sync that is needed in only one place.
func TestDirStoreNeedsEverySync(t *testing.T) {
	syncs := map[string]func(crashfs.Call) bool{
		"content of a snapshot":  func(c crashfs.Call) bool { return c.Op == "sync" },
		"names in the directory": func(c crashfs.Call) bool { return c.Op == "syncdir" && c.Name == crashDir },
		"name of the directory":  func(c crashfs.Call) bool { return c.Op == "syncdir" && c.Name == filepath.Dir(crashDir) },
		"name of the one above":  func(c crashfs.Call) bool { return c.Op == "syncdir" && c.Name == "/var/lib" },
	}
	for name, isIt := range syncs {
		t.Run(name, func(t *testing.T) {
			for _, kills := range []bool{false, true} {
				l := newLife(2)
				l.lie, l.kills = isIt, kills
				l.live()
				assert.Error(t, l.broken, "kills=%t", kills)
			}
		})
	}

	// OpenDir syncs the directory for a process that was killed between renaming and
	// syncing. Only a life with such a kill needs this sync.
	t.Run("names in the directory, at opening", func(t *testing.T) {
		l := newLife(2)
		l.kills = true
		opening := false
		l.lie = func(c crashfs.Call) bool {
			switch {
			case c.Op == "lock":
				opening = true
			case c.Op == "syncdir" && c.Name == crashDir && opening:
				opening = false
				return true
			}
			return false
		}
		l.live()
		assert.ErrorContains(t, l.broken, "resumed")
	})
}

// If any call fails, with or without its effect, once or from then on, Save reports the
// error, the earlier snapshots stay, and the store continues when calls succeed again.
func TestDirStoreSurvivesEveryFailure(t *testing.T) {
	faults := map[string]crashfs.Fault{
		"without effect": {Err: syscall.EIO},
		"with effect":    {Err: syscall.EIO, Done: true},
		"disk full":      {Err: syscall.ENOSPC, Part: 7},
	}
	step := 1
	switch {
	case suite.Race:
		step = 5
	case !suite.Full():
		step = 3
	}
	for name, fault := range faults {
		for _, lasting := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/lasting=%t", name, lasting), func(t *testing.T) {
				failed := 0
				for at := 0; ; at += step {
					repeated := newLife(1)
					_, _ = repeated.failAt(at, fault, lasting, true)
					require.NoError(t, repeated.broken, "call %d, and the same snapshot again", at)
					l := newLife(1)
					hit, err := l.failAt(at, fault, lasting, false)
					require.NoError(t, l.broken, "call %d", at)
					if err != nil {
						assert.ErrorIs(t, err, fault.Err)
						failed++
					}
					if !hit {
						break
					}
				}
				t.Logf("%d calls that made Save or OpenDir fail", failed)
			})
		}
	}
}

// failAt opens a store and saves three snapshots, while some calls fail. It reports
// whether a call has failed.
func (l *life) failAt(at int, fault crashfs.Fault, lasting, again bool) (hit bool, err error) {
	l.fs.FewTears()
	d, err := l.open(l.fs)
	if err != nil {
		l.broken = err
		return false, nil
	}
	for id := uint64(1); id <= 2; id++ {
		if l.broken = l.save(d, id); l.broken != nil {
			return false, nil
		}
	}
	n := 0
	l.fs.OnCall(func(c crashfs.Call) *crashfs.Fault {
		n++
		if n-1 == at || lasting && n-1 > at {
			hit = true
			return &fault
		}
		return nil
	})
	err = l.save(d, 3)
	l.fs.OnCall(nil)
	if err != nil {
		if files := l.fs.Files(); !lasting && len(files) != len([]string{"/var/", "lib/", "weir/", "lookup/", "LOCK", "2"}) {
			l.broken = fmt.Errorf("something was left over: %v", slices.Sorted(maps.Keys(files)))
		}
		l.cut(l.fs, fmt.Sprintf("after the failure %v", err))
		if _, _, err := l.look(l.fs.Clone()); err != nil {
			l.broken = fmt.Errorf("killed after the failure: %w", err)
		}
		s, _, loadErr := checkpoint.Latest(context.Background(), d)
		if loadErr != nil || s.ID != 2 {
			l.broken = fmt.Errorf("after the failure the store has %v: %w", s, loadErr)
		}
		if l.broken == nil && again {
			l.observe("saving again after the failure", func() error { return l.save(d, 3) })
			l.observe("and again, although it is stored", func() error { return l.save(d, 3) })
			l.saved = l.saved[:len(l.saved)-1]
		}
	}
	if l.broken == nil {
		l.observe("saving after the failure", func() error { return l.save(d, 4) })
	}
	return hit, err
}

// The number of a failed Save is used if the snapshot may be on the disk, otherwise it is
// free.
func TestDirStoreNumbersOfFailedSaves(t *testing.T) {
	for op, taken := range map[string]bool{"open": false, "write": false, "sync": false, "close": false, "rename": true, "syncdir": true} {
		l := newLife(2)
		d, err := l.open(l.fs)
		require.NoError(t, err)
		require.NoError(t, l.save(d, 1))
		l.fs.OnCall(func(c crashfs.Call) *crashfs.Fault {
			if c.Op == op {
				return &crashfs.Fault{Err: syscall.EIO, Done: true}
			}
			return nil
		})
		require.ErrorIs(t, l.save(d, 2), syscall.EIO, op)
		l.fs.OnCall(nil)
		other := crashSnapshot(2)
		other.States["more"] = participant.State{[]byte("of it")}
		err = d.Save(t.Context(), other)
		if taken {
			var number *checkpoint.NumberError
			require.ErrorAs(t, err, &number, op)
			assert.Equal(t, checkpoint.NumberError{Checkpoint: 2, Newest: 2}, *number)
			require.NoError(t, l.save(d, 3))
		} else {
			require.NoError(t, err, op)
		}
	}
}

// OpenDir reports the error of any call, and a later OpenDir succeeds.
func TestDirStoreOpenSurvivesEveryFailure(t *testing.T) {
	for at := 0; ; at++ {
		l := newLife(1)
		hit := false
		n := 0
		l.fs.OnCall(func(crashfs.Call) *crashfs.Fault {
			n++
			if n-1 == at {
				hit = true
				return &crashfs.Fault{Err: syscall.EIO}
			}
			return nil
		})
		d, err := l.open(l.fs)
		l.fs.OnCall(nil)
		if !hit {
			require.NoError(t, err)
			break
		}
		if err != nil {
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorContains(t, err, crashDir)
			d, err = l.open(l.fs)
			require.NoError(t, err, "call %d: the lock must have been released", at)
		}
		require.NoError(t, l.save(d, 1))
		l.cut(l.fs, "after an opening that failed")
		require.NoError(t, l.broken, "call %d", at)
		require.NoError(t, d.Close())
	}
}
