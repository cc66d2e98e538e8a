//go:build unix

package sqlite

import (
	"os"
	"path/filepath"
	"testing"

	driver "modernc.org/sqlite"

	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/internal/testing/keystest"
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

func TestKeys(t *testing.T) { keystest.Run(t, keysSetup) }

// TestKeysKilled takes each third boundary of a statement, or all with WEIR_LONG_TESTS.
func TestKeysKilled(t *testing.T) {
	stride := 3
	if os.Getenv("WEIR_LONG_TESTS") != "" {
		stride = 1
	}
	keystest.RunKilled(t, keysSetup, stride)
}
