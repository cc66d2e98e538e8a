// Package interfaces_test checks that protocols between packages are named interfaces. An
// assertion to an anonymous interface still compiles when no type has its methods, for
// example after a method was renamed.
package interfaces_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

func TestAssertions_NameTheirInterface(t *testing.T) {
	t.Parallel()
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, at := range anonymousAssertions(file) {
			t.Errorf("%v asserts to an anonymous interface: give it a name, and check its types with var _ Name = (*Type)(nil)", positions.Position(at))
		}
		return nil
	}))
	assert.Greater(t, files, 500)
}

func TestInterfaces_AnonymousAssertions(t *testing.T) {
	t.Parallel()
	const text = `package p

func f(x any, err error) {
	_, _ = x.(interface{ A() })               // line 4
	switch x.(type) {
	case int, interface{ B() }:               // line 6
	case named, any, interface{}:
	}
	_, _ = errors.AsType[interface{ C() }](err) // line 9
	_, _ = x.(named)
	_, _ = x.(interface{})
}

func g(x interface{ D() }) {}
`
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, "p.go", text, parser.SkipObjectResolution)
	require.NoError(t, err)
	var lines []int
	for _, at := range anonymousAssertions(file) {
		lines = append(lines, positions.Position(at).Line)
	}
	assert.Equal(t, []int{4, 6, 9}, lines)
}

// anonymousAssertions returns the positions of unnamed interfaces with methods in type
// assertions, type switches and type arguments.
func anonymousAssertions(file *ast.File) (found []token.Pos) {
	note := func(e ast.Expr) {
		i, ok := e.(*ast.InterfaceType)
		if ok && i.Methods.NumFields() > 0 {
			found = append(found, i.Pos())
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeAssertExpr:
			note(n.Type)
		case *ast.CaseClause:
			for _, e := range n.List {
				note(e)
			}
		case *ast.IndexExpr:
			note(n.Index)
		}
		return true
	})
	return found
}
