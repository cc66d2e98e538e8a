package files

import (
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/testing/crashfs"
	"github.com/weirflow/weir/internal/vfs"
)

// TroubledDisk is a disk whose calls can be made to fail, without locks.
type TroubledDisk struct {
	fs *crashfs.FS
}

// NewTroubledDisk returns an empty disk.
func NewTroubledDisk() *TroubledDisk {
	fsys := crashfs.New()
	if err := errors.Join(fsys.Mkdir("/var", 0o755), fsys.Mkdir("/var/lib", 0o755), fsys.Mkdir("/out", 0o755)); err != nil {
		panic(err)
	}
	return &TroubledDisk{fsys}
}

// Fail makes the n-th call from now fail.
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
func (d *TroubledDisk) OpenStore() (checkpoint.Store, error) {
	s, err := openDir(lockless{d.fs}, crashDir)
	if err != nil {
		return nil, err
	}
	s.LogTo(quiet())
	s.buffer = 64
	return s, nil
}

// lockless is a file system without locks.
type lockless struct{ vfs.FS }

func (lockless) Lock(string) (vfs.Lock, error)      { return nil, errors.ErrUnsupported }
func (lockless) LockFile(string) (io.Closer, error) { return nil, errors.ErrUnsupported }

// NewOutput returns an output of lines.
func (d *TroubledDisk) NewOutput() checkpoint.Output[string] { return newCrashOutput(d.fs) }

// Lines returns the lines that the outputs have published.
func (d *TroubledDisk) Lines() ([]string, error) {
	text := d.fs.Files()[outputPath]
	if text == "" {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n"), nil
}

// OpenDirOn opens a store in the directory that NewTroubledDisk makes.
func OpenDirOn(fsys vfs.FS) (*DirStore, error) {
	d, err := openDir(fsys, crashDir)
	if d != nil {
		d.LogTo(quiet())
	}
	return d, err
}

// withStepHook calls step before each step by which a store changes the disk.
func withStepHook(step func(step string)) func(*DirStore) {
	return func(d *DirStore) { d.step = step }
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// clone returns a copy that shares no memory with s, with every state in one piece, as a
// store returns it.
func clone(s *checkpoint.Snapshot) *checkpoint.Snapshot {
	out := &checkpoint.Snapshot{ID: s.ID, Kind: s.Kind, Time: s.Time.Round(0).UTC(), States: make(map[string]participant.State, len(s.States))}
	for name, state := range s.States {
		whole := make([]byte, 0, state.Size()) // not nil, like a state that was read
		for _, piece := range state {
			whole = append(whole, piece...)
		}
		out.States[name] = participant.State{whole}
	}
	return out
}

// Names for the tests in package files_test.
const OutputPath = outputPath

var (
	NewCrashOutput = newCrashOutput
	NewOutputDisk  = newOutputDisk
)

// Quiet discards the log of d, and returns d.
func (d *DirStore) Quiet() *DirStore {
	d.LogTo(quiet())
	return d
}
