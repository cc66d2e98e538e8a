// Package laws_test checks docs/laws.md, which lists the laws of DESIGN.md with the tests
// that name them.
//
// A test names a law in its comment: "Law A2: …", "(law A2)" or "laws A2, A3 and Q1".
package laws_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

var update = flag.Bool("update", false, "write docs/laws.md")

var (
	law      = regexp.MustCompile(`(?m)^- \*\*([A-Z][0-9])\*\* ((?:.+\n(?:  .*\n)*))`)
	mention  = regexp.MustCompile(`\b[Ll]aws? ([A-Z][0-9](?:(?:,? and |, )[A-Z][0-9])*)\b`)
	number   = regexp.MustCompile(`[A-Z][0-9]`)
	sentence = regexp.MustCompile(`^.*?\.(?: |$)`)
	isTest   = regexp.MustCompile(`^(Test|Fuzz)[^a-z]`)
)

// Every law has a test, tests name only existing laws, and docs/laws.md is up to date. To
// write it:
//
//	go test ./internal/testing/laws -update
func TestLawsHaveTests(t *testing.T) {
	t.Parallel()
	design, err := os.ReadFile(filepath.Join(root, "DESIGN.md"))
	require.NoError(t, err)
	tests := testsOfLaws(t)
	var table strings.Builder
	table.WriteString("# Laws and their tests\n\nThe laws are those of [DESIGN.md](../DESIGN.md#3-laws). This page is generated: " +
		"`go test ./internal/testing/laws -update`.\n\n| law | it begins | tests that name it |\n|---|---|---|\n")
	for _, m := range law.FindAllStringSubmatch(string(design), -1) {
		text := strings.Join(strings.Fields(m[2]), " ")
		text = strings.TrimRight(cmp.Or(sentence.FindString(text), text), " :.")
		assert.NotEmpty(t, tests[m[1]], "law %s has no test that names it", m[1])
		fmt.Fprintf(&table, "| **%s** | %s | %s |\n", m[1], text, strings.Join(tests[m[1]], "<br>"))
		delete(tests, m[1])
	}
	assert.Empty(t, tests, "tests of laws that DESIGN.md does not have")

	page := filepath.Join(root, "docs", "laws.md")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(table.String()), 0o644)) //nolint:gosec // a page of the documentation
	}
	written, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, table.String(), strings.ReplaceAll(string(written), "\r\n", "\n"), "docs/laws.md has drifted: write it with -update")
}

// testsOfLaws returns the names of the tests that name a law, by law and sorted.
func testsOfLaws(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Doc == nil || !isTest.MatchString(f.Name.Name) {
				continue
			}
			for _, laws := range mention.FindAllString(f.Doc.Text(), -1) {
				for _, l := range number.FindAllString(laws, -1) {
					tests[l] = append(tests[l], "`"+filepath.ToSlash(dir)+"`."+f.Name.Name)
				}
			}
		}
		return err
	}))
	for l, names := range tests {
		slices.Sort(names)
		tests[l] = slices.Compact(names)
	}
	return tests
}
