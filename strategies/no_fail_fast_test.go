package strategies_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// R21: no exported strategy fails fast. NoRetry does not count: it switches retries and
// classification off.
func TestStrategies_NoneFailsFast(t *testing.T) {
	failFast := regexp.MustCompile(`(?i)fail_?fast|never_?retry|fast_?fail`)
	exported := 0
	for _, dir := range []string{".", "../predicates"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id.IsExported() {
					exported++
					assert.NotRegexp(t, failFast, id.Name, path)
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	assert.Greater(t, exported, 100)
}
