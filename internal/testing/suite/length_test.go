package suite_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/testing/suite"
)

func TestFullAndLong(t *testing.T) {
	for length, want := range map[string]struct{ full, long bool }{
		"": {}, "ci": {full: true}, "1": {full: true, long: true},
	} {
		t.Setenv("WEIR_LONG", length)
		assert.Equal(t, want.full && !testing.Short(), suite.Full(), "WEIR_LONG=%s", length)
		assert.Equal(t, want.long, suite.Long(), "WEIR_LONG=%s", length)
	}
}
