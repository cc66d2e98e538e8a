package main

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// pkg is a package that users import.
type pkg struct {
	path string // to import it
	root string // of the repository
	fset *token.FileSet
	doc  *doc.Package
	all  []*ast.File
}

var module = regexp.MustCompile(`(?m)^module (\S+)$`)

// outside are directories without packages for users, beside conformance suites, whose
// names end in test.
var outside = map[string]bool{"internal": true, "testdata": true, "examples": true, "bench": true, "docs": true, "tools": true, "cmd": true, ".git": true}

// load parses all packages for users, in the order of their paths.
func load(root string) (packages []pkg, err error) {
	modules := map[string]string{} // import paths of directories
	err = filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != root && (outside[d.Name()] || strings.HasSuffix(d.Name(), "test")) {
			return filepath.SkipDir
		}
		path := modules[filepath.Dir(dir)] + "/" + d.Name()
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil {
			path = module.FindStringSubmatch(string(text))[1]
		}
		modules[dir] = path
		p, err := parse(dir, path)
		p.root = root
		if p.doc != nil {
			packages = append(packages, p)
		}
		return err
	})
	return packages, err
}

func parse(dir, path string) (p pkg, err error) {
	p = pkg{path: path, fset: token.NewFileSet()}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return p, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(p.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return p, err
		}
		p.all = append(p.all, file)
	}
	if len(p.all) > 0 {
		p.doc, err = doc.NewFromFiles(p.fset, p.all, path, doc.AllDecls|doc.PreserveAST) // without AllDecls it removes unexported names from the files
	}
	return p, err
}
