package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/weirflow/weir"

var quoted = regexp.MustCompile("`([^`]+)`")

// DESIGN.md lists the packages and their imports. Packages of internal/ may be imported
// by all, so it lists them without their imports.
func TestDesignPackages(t *testing.T) {
	page, err := os.ReadFile("../DESIGN.md")
	require.NoError(t, err)
	packages := map[string][]string{} // imports of a package
	var helpers []string              // packages of internal/
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) == 5 && strings.HasPrefix(cells[1], " `"):
			packages[namesIn(cells[1])[0]] = namesIn(cells[3])
		case len(cells) == 4 && strings.HasPrefix(cells[1], " `"):
			helpers = append(helpers, namesIn(cells[1])...)
		}
	}
	require.NotEmpty(t, packages)
	require.Less(t, len(strings.Fields(string(page))), 6_000, "words")

	list := exec.Command("go", "list", "-f", "{{if .GoFiles}}{{.ImportPath}} {{join .Imports \" \"}}{{end}}", "./...")
	list.Dir = ".."
	out, err := list.Output()
	require.NoError(t, err)
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		var ours []string
		for _, path := range strings.Fields(line) {
			if name, ok := strings.CutPrefix(path, module+"/"); ok {
				ours = append(ours, name)
			}
		}
		if ours == nil { // tests only
			continue
		}
		name := ours[0]
		seen[name] = true
		if helper, ok := strings.CutPrefix(name, "internal/"); ok {
			helper, _, _ = strings.Cut(helper, "/")
			require.Contains(t, helpers, helper, "a package that DESIGN.md does not list")
			seen[helper] = true
			continue
		}
		may, ok := packages[name]
		if !ok {
			dir := name[:strings.LastIndex(name, "/")+1]
			// Conformance suites, tables of predicates and helpers of ext/ have no line
			// of their own.
			require.True(t, strings.HasSuffix(name, "test") || strings.HasPrefix(name, "predicates/") || dir == "ext/internal/",
				"DESIGN.md does not list package %s", name)
			continue
		}
		var imports []string
		for _, other := range ours[1:] {
			if !strings.Contains(other, "internal/") && !strings.HasPrefix(other, name+"/") {
				imports = append(imports, listedAs(other))
			}
		}
		may = slices.DeleteFunc(slices.Clone(may), func(s string) bool { return strings.HasPrefix(s, name+"/") })
		slices.Sort(imports)
		slices.Sort(may)
		require.Equal(t, may, slices.Compact(imports), "imports of %s: DESIGN.md, and the code", name)
	}
	require.LessOrEqual(t, len(helpers), 18, "packages of internal/, including test support")
	for _, name := range helpers {
		require.True(t, seen[name], "DESIGN.md lists a helper that does not exist: %s", name)
	}
	for name := range packages {
		require.True(t, seen[name] || name == "exactlyonce/lincheck", "DESIGN.md lists a package that does not exist: %s", name)
	}
}

// listedAs returns the name under which DESIGN.md lists a package.
func listedAs(name string) string {
	if strings.HasPrefix(name, "predicates/") {
		return "predicates"
	}
	return name
}

func namesIn(cell string) (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		names = append(names, m[1])
	}
	return names
}

// A program that imports the operator and has no checkpoints does not link a coordinator,
// files, stores or flows.
func TestDesignPackages_LinkedByTheOperator(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "./asyncop")
	list.Dir = ".."
	out, err := list.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), module+"/checkpoint/participant\n")
	for _, name := range []string{"checkpoint", "flow", "delivery", "backend", "internal/vfs"} {
		require.NotContains(t, string(out), module+"/"+name+"\n")
	}
}

// A pipeline whose checkpoints, input and output are elsewhere links no code for files.
func TestDesignPackages_CheckpointWithoutFiles(t *testing.T) {
	list := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, "./checkpoint")
	list.Dir = ".."
	out, err := list.Output()
	require.NoError(t, err)
	for _, file := range []string{"os", "io/fs", "path/filepath", "encoding/csv", module + "/internal/vfs", module + "/checkpoint/files"} {
		require.NotContains(t, strings.Fields(string(out)), file)
	}
}

// The operator stays learnable. The interfaces that signatures name count, too.
func TestNamesOfTheOperator(t *testing.T) {
	files, err := filepath.Glob("../asyncop/*.go")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			for _, n := range declared(d) {
				if n.IsExported() {
					names[n.Name] = true
				}
			}
		}
	}
	require.NotEmpty(t, names)
	require.LessOrEqual(t, len(names), 73, "exported names of asyncop: %v", slices.Sorted(maps.Keys(names)))
}

// declared returns the names that a declaration adds to its package. A method adds none.
func declared(d ast.Decl) (names []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name)
			case *ast.ValueSpec:
				names = append(names, spec.Names...)
			}
		}
	}
	return names
}

// Names of packages in a signature of the API, such as gate in gate.Seat.
var qualifier = regexp.MustCompile(`\b([a-z]+)\.[A-Z]`)

// Public signatures name only public types, so that each name can be followed. Two
// aliases of errors are the exceptions.
func TestPublicSignatures_InternalTypes(t *testing.T) {
	list := exec.Command("go", "list", "-f", "{{if .GoFiles}}{{.ImportPath}}{{end}}", "work")
	list.Dir = ".."
	out, err := list.Output()
	require.NoError(t, err)
	public, internal := map[string]bool{}, map[string]bool{}
	for path := range strings.FieldsSeq(string(out)) {
		name := path[strings.LastIndex(path, "/")+1:]
		if strings.Contains(path, "/internal/") {
			internal[name] = true
		} else {
			public[name] = true
		}
	}
	api, err := os.ReadFile("reference/api.txt")
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(api)) {
		for _, m := range qualifier.FindAllStringSubmatch(line, -1) {
			if internal[m[1]] && !public[m[1]] {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	require.Equal(t, []string{
		"asyncop: type DownstreamError = wiring.DownstreamError",
		"asyncop: type PanicError = guard.PanicError",
	}, found)
}
