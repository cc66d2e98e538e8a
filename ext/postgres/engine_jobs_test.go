//go:build unix

package postgres_test

import (
	"context"
	"testing"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/jobkill"
)

func TestKilledJobs(t *testing.T) { jobkill.Run(t, places(t)(t), openForJobs) }

func openForJobs(ctx context.Context, url string) (store.Keeper, error) {
	return postgres.Open(ctx, url, postgres.WithLogger(quiet))
}
