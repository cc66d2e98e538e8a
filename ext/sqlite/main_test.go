package sqlite

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	for _, child := range Children {
		child()
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}
