package deadfile

import (
	"log/slog"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/vfs"
)

// onFS opens on another file system.
func onFS(fsys vfs.FS) option { return func(s *settings) { s.fs = fsys } }

// byClock opens with another clock.
func byClock(c clock.Clock) option { return func(s *settings) { s.clock = c } }

type option func(*settings)

// openWith is Open with what only tests set.
func openWith[T any](dir string, c codec.Codec[T], opts ...option) (*File[T], error) {
	s := settings{clock: clock.New(), logger: slog.Default(), fs: vfs.OS()}
	for _, opt := range opts {
		opt(&s)
	}
	return openOn(dir, c, s)
}
