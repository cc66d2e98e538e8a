//go:build unix

package sqlite

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weirflow/weir/internal/keystest"
)

func TestMain(m *testing.M) {
	keystest.Child(keysPlace)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}
