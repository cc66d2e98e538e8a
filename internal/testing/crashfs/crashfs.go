// Package crashfs is a file system in memory that can lose its power, to prove that
// writes, syncs and renames survive a crash at any point.
//
// # Model
//
// Every file and directory has a version that processes see, which calls change, and a
// version that is certainly on disk. Only Sync makes a file's contents certain, and only
// SyncDir the names in a directory (as strict as POSIX allows). A power cut may or may
// not keep later changes, and [FS.Images] yields every disk that may result:
//
//   - any subset of the changes to names (create, rename, remove, mkdir) in each
//     directory;
//   - for the contents of a file: any prefix of its changes, with the last one torn at
//     any byte; or its full length with the old contents (zeros beyond the old end) in
//     front of or behind some position; or all but one change. Long files are torn only
//     at some bytes: see tearPoints.
//
// A rename is one change, unless [FS.SplitRenames] splits it.
//
// [FS.Clone] is the state after a kill without a power cut: everything visible.
//
// # Faults
//
// [FS.OnCall] sees every call before it takes effect. It can make the call fail with or
// without its effect, write only a part, or only pretend to succeed, to prove that a sync
// is needed. After a failed Sync the unsynced contents never become certain unless they
// are written again, although later Syncs report success, as on Linux.
package crashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/weirflow/weir/internal/vfs"
)

// FS is the file system. It is safe for concurrent use.
type FS struct {
	mu     sync.Mutex
	root   *inode
	locks  map[string]bool
	onCall func(Call) *Fault
	calls  int
	split  bool
	few    bool
}

var _ vfs.FS = (*FS)(nil)

// Call is a call before it takes effect.
type Call struct {
	N    int    // index of the call, from 0
	Op   string // open, read, write, seek, truncate, sync, close, size, rename, remove, mkdir, readdir, stat, syncdir, lock, unlock
	Name string
	To   string // new name of a rename
	Len  int
}

func (c Call) String() string {
	s := fmt.Sprintf("#%d %s %s", c.N, c.Op, c.Name)
	switch c.Op {
	case "rename":
		s += " to " + c.To
	case "write":
		s += fmt.Sprintf(" (%d bytes)", c.Len)
	}
	return s
}

// Changes reports whether the call changes a version.
func (c Call) Changes() bool {
	switch c.Op {
	case "read", "seek", "close", "size", "readdir", "stat", "lock", "unlock":
		return false
	default:
		return true
	}
}

// Fault replaces the normal behaviour of a call. With an empty Fault the call reports
// success without effect.
type Fault struct {
	Err  error // nil reports success
	Done bool  // the call takes effect
	Part int   // bytes that a write without Done still writes
}

type inode struct {
	// Of a file:
	data    []byte   // visible
	sure    []byte   // certainly on disk
	pending []change // changes since sure, in order
	lost    int      // pending changes that a failed sync lost; they never become certain

	// Of a directory; nil for a file:
	names     map[string]*inode // visible
	sureNames map[string]*inode // certainly on disk
	edits     [][]edit          // changes since sureNames, in order; each is applied as a whole or not
}

// change is a write, or with nil bytes a truncation to length off.
type change struct {
	off   int
	bytes []byte
}

// edit gives a name to a file, or removes the name if node is nil.
type edit struct {
	name string
	node *inode
}

func newDir() *inode { return &inode{names: map[string]*inode{}, sureNames: map[string]*inode{}} }

func (n *inode) isDir() bool { return n.names != nil }

// New returns a file system with an empty root directory.
func New() *FS { return &FS{root: newDir(), locks: map[string]bool{}} }

// OnCall sets a function that sees every call, or nil. It is called without a lock, so it
// may use and clone the file system and take its images.
func (f *FS) OnCall(see func(Call) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onCall = see
}

// SplitRenames lets a power cut keep one half of a rename: both names, or neither. No
// journaling file system does that, so a protocol that survives it is safe on any.
func (f *FS) SplitRenames() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.split = true
}

// FewTears tears files only in the middle, for tests that concentrate on names.
func (f *FS) FewTears() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.few = true
}

// Settle makes everything visible certain, as after some time.
func (f *FS) Settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.settle()
}

func (n *inode) settle() {
	if !n.isDir() {
		n.sure, n.pending = bytes.Clone(n.data), nil
		return
	}
	n.sureNames, n.edits = maps.Clone(n.names), nil
	for _, child := range n.names {
		child.settle()
	}
}

// Files returns the visible contents of all files by path. Directories end in a
// separator.
func (f *FS) Files() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	var walk func(path string, n *inode)
	walk = func(path string, n *inode) {
		for name, child := range n.names {
			p := filepath.Join(path, name)
			if child.isDir() {
				out[p+string(filepath.Separator)] = ""
				walk(p, child)
			} else {
				out[p] = string(child.data)
			}
		}
	}
	walk(string(filepath.Separator), f.root)
	return out
}

// call reports a call and returns its fault, or nil.
func (f *FS) call(op, name, to string, n int) *Fault {
	f.mu.Lock()
	c := Call{N: f.calls, Op: op, Name: name, To: to, Len: n}
	f.calls++
	see := f.onCall
	f.mu.Unlock()
	if see == nil {
		return nil
	}
	return see(c)
}

// do makes a call. It runs effect with mu held.
func (f *FS) do(op, name string, effect func() error) error {
	return f.doTo(op, name, "", effect)
}

func (f *FS) doTo(op, name, to string, effect func() error) error {
	fault := f.call(op, name, to, 0)
	if fault == nil || fault.Done {
		f.mu.Lock()
		err := effect()
		f.mu.Unlock()
		if err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	if fault != nil && fault.Err != nil {
		return &fs.PathError{Op: op, Path: name, Err: fault.Err}
	}
	return nil
}

// find returns the named file. The caller holds mu.
func (f *FS) find(name string) (*inode, error) {
	n := f.root
	for part := range strings.SplitSeq(filepath.Clean(name), string(filepath.Separator)) {
		if part == "" {
			continue
		}
		if !n.isDir() {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.names[part]
		if !ok {
			return nil, fs.ErrNotExist
		}
		n = next
	}
	return n, nil
}

// place is a name in a directory, with or without a file.
type place struct {
	dir  *inode
	base string
}

// place returns a name's place in its directory, which must exist.
func (f *FS) place(name string) (place, error) {
	name = filepath.Clean(name)
	dir, err := f.find(filepath.Dir(name))
	if err != nil {
		return place{}, err
	}
	if !dir.isDir() {
		return place{}, syscall.ENOTDIR
	}
	return place{dir, filepath.Base(name)}, nil
}

func (p place) file() (*inode, bool) {
	n, ok := p.dir.names[p.base]
	return n, ok
}

// edit changes visible names and records the change as uncertain.
func (n *inode) edit(edits ...edit) {
	for _, e := range edits {
		if e.node == nil {
			delete(n.names, e.name)
		} else {
			n.names[e.name] = e.node
		}
	}
	n.edits = append(n.edits, edits)
}

// OpenFile implements vfs.FS.
func (f *FS) OpenFile(name string, flag int, _ fs.FileMode) (vfs.File, error) {
	file := &file{fs: f, name: name, flag: flag}
	err := f.do("open", name, func() error {
		at, err := f.place(name)
		if err != nil {
			return err
		}
		n, exists := at.file()
		switch {
		case !exists && flag&os.O_CREATE == 0:
			return fs.ErrNotExist
		case exists && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
			return fs.ErrExist
		case exists && n.isDir():
			return syscall.EISDIR
		case !exists:
			n = &inode{}
			at.dir.edit(edit{at.base, n})
		case flag&os.O_TRUNC != 0:
			n.apply(change{off: 0})
		}
		file.node = n
		return nil
	})
	if err != nil {
		return nil, err
	}
	if file.node == nil { // the fault pretended success: writes go to a detached file
		file.node = &inode{}
	}
	return file, nil
}

// Rename implements vfs.FS.
func (f *FS) Rename(from, to string) error {
	return f.doTo("rename", from, to, func() error {
		source, err := f.place(from)
		if err != nil {
			return err
		}
		target, err := f.place(to)
		if err != nil {
			return err
		}
		n, ok := source.file()
		if !ok {
			return fs.ErrNotExist
		}
		switch old, ok := target.file(); {
		case ok && old.isDir():
			return fs.ErrExist
		case ok && n.isDir():
			return syscall.ENOTDIR
		case n.isDir() && strings.HasPrefix(filepath.Clean(to), filepath.Clean(from)+string(filepath.Separator)):
			return syscall.EINVAL // into itself
		}
		if source.dir == target.dir && !f.split {
			source.dir.edit(edit{source.base, nil}, edit{target.base, n})
			return nil
		}
		source.dir.edit(edit{source.base, nil})
		target.dir.edit(edit{target.base, n})
		return nil
	})
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.do("remove", name, func() error {
		at, err := f.place(name)
		if err != nil {
			return err
		}
		n, ok := at.file()
		switch {
		case !ok:
			return fs.ErrNotExist
		case n.isDir() && len(n.names) > 0:
			return syscall.ENOTEMPTY
		}
		at.dir.edit(edit{at.base, nil})
		return nil
	})
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string, _ fs.FileMode) error {
	return f.do("mkdir", name, func() error {
		at, err := f.place(name)
		if err != nil {
			return err
		}
		if _, ok := at.file(); ok {
			return fs.ErrExist
		}
		at.dir.edit(edit{at.base, newDir()})
		return nil
	})
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(name string) ([]vfs.Info, error) {
	var out []vfs.Info
	err := f.do("readdir", name, func() error {
		n, err := f.find(name)
		if err != nil {
			return err
		}
		if !n.isDir() {
			return syscall.ENOTDIR
		}
		for _, base := range slices.Sorted(maps.Keys(n.names)) {
			out = append(out, n.names[base].info(base))
		}
		return nil
	})
	return out, err
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Info, error) {
	var out vfs.Info
	err := f.do("stat", name, func() error {
		n, err := f.find(name)
		if err == nil {
			out = n.info(filepath.Base(name))
		}
		return err
	})
	return out, err
}

func (n *inode) info(name string) vfs.Info {
	return vfs.Info{Name: name, Size: int64(len(n.data)), Dir: n.isDir()}
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(name string) error {
	return f.do("syncdir", name, func() error {
		n, err := f.find(name)
		if err != nil {
			return err
		}
		if !n.isDir() {
			return syscall.ENOTDIR
		}
		n.sureNames, n.edits = maps.Clone(n.names), nil
		return nil
	})
}

// Lock implements vfs.FS. It does not record the holder.
func (f *FS) Lock(name string) (vfs.Lock, error) {
	err := f.do("lock", name, func() error {
		at, err := f.place(name)
		if err != nil {
			return err
		}
		if _, ok := at.file(); !ok {
			at.dir.edit(edit{at.base, &inode{}})
		}
		if f.locks[name] {
			return &vfs.HeldError{}
		}
		f.locks[name] = true
		return nil
	})
	if held, ok := errors.AsType[*vfs.HeldError](err); ok {
		return nil, held
	}
	if err != nil {
		return nil, err
	}
	return unlocker{f, name}, nil
}

// LockFile implements vfs.FS.
func (f *FS) LockFile(name string) (io.Closer, error) {
	if _, err := f.Lock(name); err != nil {
		return nil, err
	}
	return passingLock{f, name}, nil
}

type passingLock struct {
	fs   *FS
	name string
}

// Close releases the lock even if removing the file fails, like closing its descriptor.
func (l passingLock) Close() error {
	_ = l.fs.Remove(l.name)
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locks, l.name)
	return nil
}

type unlocker struct {
	fs   *FS
	name string
}

// Check returns nil: tests do not replace directories here.
func (u unlocker) Check() error { return nil }

func (u unlocker) Close() error {
	return u.fs.do("unlock", u.name, func() error {
		delete(u.fs.locks, u.name)
		return nil
	})
}
