package server_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weirflow/weir/internal/testing/suite"
)

func TestMain(m *testing.M) {
	suite.SetParallel(8, 4)
	goleak.VerifyTestMain(m)
}
