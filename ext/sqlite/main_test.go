package sqlite

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weirflow/weir/internal/testing/suite"
)

func TestMain(m *testing.M) {
	for _, child := range Children {
		child()
	}
	suite.SetParallel(8, 4)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}
