//go:build unix

package pgtest

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/internal/testing/keystest"
	"github.com/weirflow/weir/internal/testing/suite"
)

func TestMain(m *testing.M) {
	keystest.Child(keystest.Setup{Driver: stdlib.GetDefaultDriver(), Dialect: keys.PostgreSQL})
	os.Exit(m.Run())
}

// TestKeys takes each ninth boundary of a statement for its kills, each third in CI, or
// all with WEIR_LONG=1.
func TestKeys(t *testing.T) {
	server := Start(t)
	var schemas atomic.Int64
	setup := keystest.Setup{
		Driver:  stdlib.GetDefaultDriver(),
		Dialect: keys.PostgreSQL,
		New: func(*testing.T) string {
			name := fmt.Sprintf("keys_%d", schemas.Add(1))
			server.Exec("CREATE SCHEMA " + name)
			return server.URL() + "&search_path=" + name
		},
		Conns: 4,
	}
	t.Run("suite", func(t *testing.T) { keystest.Run(t, setup) })
	t.Run("killed", func(t *testing.T) {
		stride := 9
		switch {
		case suite.Long():
			stride = 1
		case suite.Full():
			stride = 3
		}
		keystest.RunKilled(t, setup, stride)
	})
}
