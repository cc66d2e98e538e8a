package deadfile

import (
	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/vfs"
)

// onFS opens on another file system.
func onFS(fsys vfs.FS) Option { return func(s *settings) { s.fs = fsys } }

// byClock opens with another clock.
func byClock(c clock.Clock) Option { return func(s *settings) { s.clock = c } }
