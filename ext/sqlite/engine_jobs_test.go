package sqlite_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/jobkill"
)

func init() { sqlite.Children = append(sqlite.Children, func() { jobkill.Child(openForJobs) }) }

func TestKilledJobs(t *testing.T) {
	jobkill.Run(t, filepath.Join(t.TempDir(), "queues.db"), openForJobs)
}

func openForJobs(ctx context.Context, path string) (store.Keeper, error) {
	return sqlite.Open(ctx, path, sqlite.WithLogger(slog.New(slog.DiscardHandler)))
}
