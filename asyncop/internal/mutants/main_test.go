package main

import (
	"go/parser"
	"go/token"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every mutant fits the code: its old text occurs once, the new text is valid Go, and
// DESIGN.md has its law. The command checks whether tests catch it, which takes longer.
func TestMutantsFitTheCode(t *testing.T) {
	t.Parallel()
	design, err := os.ReadFile("../../../DESIGN.md")
	require.NoError(t, err)
	names := map[string]bool{}
	for i, m := range mutants {
		text, err := schema("..", m.file, []int{i})
		if !assert.NoError(t, err) {
			continue
		}
		_, err = parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution)
		assert.NoError(t, err, "%v", m)
		assert.NotEqual(t, m.old, m.new, "%v", m)
		assert.Contains(t, string(design), "- **"+m.law+"** ", "%v", m)
		assert.False(t, names[m.name], "two mutants are called %q", m.name)
		names[m.name] = true
	}
	require.GreaterOrEqual(t, len(mutants), 60)
}
