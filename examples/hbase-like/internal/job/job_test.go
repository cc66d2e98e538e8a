package job

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
)

func TestResult(t *testing.T) {
	for want, s := range map[int]*cli.Summary{
		exitOK:          {},
		exitInterrupted: {Interrupted: true},
		exitFailed:      {Interrupted: true, Proof: errors.New("lost one")},
	} {
		_, status := result(s)
		assert.Equal(t, want, status)
	}
}
