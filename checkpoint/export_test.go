package checkpoint

import (
	"errors"
	"strings"

	"github.com/weirflow/weir/checkpoint/internal/vfs"
	"github.com/weirflow/weir/checkpoint/internal/vfs/crashfs"
)

// TroubledDisk is a disk whose calls can be made to fail, without locks.
type TroubledDisk struct {
	fs *crashfs.FS
}

// NewTroubledDisk returns an empty one.
func NewTroubledDisk() *TroubledDisk {
	fsys := crashfs.New()
	if err := errors.Join(fsys.Mkdir("/var", 0o755), fsys.Mkdir("/var/lib", 0o755), fsys.Mkdir("/out", 0o755)); err != nil {
		panic(err)
	}
	return &TroubledDisk{fsys}
}

// Fail makes the n-th call from now on fail.
func (d *TroubledDisk) Fail(n int) {
	d.fs.OnCall(func(crashfs.Call) *crashfs.Fault {
		n--
		if n == 0 {
			return &crashfs.Fault{Err: errors.New("troubled disk"), Done: true}
		}
		return nil
	})
	if n == 0 {
		d.fs.OnCall(nil)
	}
}

// OpenStore opens the directory.
func (d *TroubledDisk) OpenStore() (Store, error) {
	s, err := openDir(lockless{d.fs}, crashDir, newStoreSettings("test", []StoreOption{WithStoreLogger(quiet())}))
	if err != nil {
		return nil, err
	}
	s.buffer = 64
	return s, nil
}

// lockless is a file system without locks.
type lockless struct{ vfs.FS }

func (lockless) Lock(string) (vfs.Lock, error) { return nil, errors.ErrUnsupported }

// NewOutput returns an output of lines.
func (d *TroubledDisk) NewOutput() Output[string] { return newCrashOutput(d.fs) }

// Lines returns what the outputs have published.
func (d *TroubledDisk) Lines() ([]string, error) {
	text := d.fs.Files()[outputPath]
	if text == "" {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n"), nil
}

// withStepHook calls step before each step by which a store changes the disk.
func withStepHook(step func(step string)) StoreOption {
	return func(s *storeSettings) { s.step = step }
}
