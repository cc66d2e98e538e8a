package deadfile

import "github.com/weirflow/weir/internal/vfs"

// onFS opens on another file system.
func onFS(fsys vfs.FS) Option { return func(s *settings) { s.fs = fsys } }
