//go:build unix

package sqlite

import (
	"path/filepath"
	"testing"

	driver "modernc.org/sqlite"

	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/internal/testing/keystest"
	"github.com/weirflow/weir/internal/testing/suite"
)

func init() { Children = append(Children, func() { keystest.Child(keysSetup) }) }

var keysSetup = keystest.Setup{
	Driver:  &driver.Driver{},
	Dialect: keys.SQLite,
	New: func(t *testing.T) string {
		return "file:" + filepath.Join(t.TempDir(), "keys.db") + "?_busy_timeout=10000&_foreign_keys=on&_dqs=0&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate"
	},
	Conns: 1,
}

func TestKeys(t *testing.T) {
	t.Parallel()
	keystest.Run(t, keysSetup)
}

// TestKeysKilled takes each ninth boundary of a statement, each third in CI, or all with
// WEIR_LONG=1.
func TestKeysKilled(t *testing.T) {
	stride := 9
	switch {
	case suite.Long():
		stride = 1
	case suite.Full():
		stride = 3
	}
	keystest.RunKilled(t, keysSetup, stride)
}
