package predicates_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

type row struct {
	key     string
	pending bool
}

func (r row) isPending() bool { return r.pending }

func TestEmptyResult(t *testing.T) {
	assert.True(t, predicates.EmptyResult[row](nil))
	assert.True(t, predicates.EmptyResult([]row{}))
	assert.False(t, predicates.EmptyResult([]row{{}}), "a zero row is a row")
	assert.False(t, predicates.EmptyResult([]*row{nil}), "a nil row is a row")
}

func TestAnyResult(t *testing.T) {
	anyPending := predicates.AnyResult(row.isPending)
	tests := []struct {
		name    string
		results []row
		want    bool
	}{
		{"nil", nil, false},
		{"empty", []row{}, false},
		{"none", []row{{key: "a"}, {key: "b"}}, false},
		{"first", []row{{pending: true}, {}}, true},
		{"last", []row{{}, {}, {pending: true}}, true},
		{"all", []row{{pending: true}, {pending: true}}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, anyPending(tt.results))
		})
	}
}

func TestAnyResult_WithoutCondition(t *testing.T) {
	assert.PanicsWithValue(t, "predicates: AnyResult: nil condition", func() {
		predicates.AnyResult[row](nil)
	})
}
