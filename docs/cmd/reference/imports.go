package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The list of a page's imports stands between these lines.
const (
	importsBegin = "<!-- imports: go run ./docs/cmd/reference -->\n"
	importsEnd   = "<!-- end of imports -->\n"
)

// source is a file with snippets of pages.
type source struct {
	name    string            // as a page of docs links it
	lines   []string          // without indentation
	imports map[string]string // import paths by the names of packages
}

// importsPages returns the pages that list their imports.
func importsPages(root string) (map[string]string, error) {
	docs := filepath.Join(root, "docs")
	sources, err := readSources(docs)
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		return nil, err
	}
	pages := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		before, rest, found := strings.Cut(string(text), importsBegin)
		if !found {
			continue
		}
		_, after, found := strings.Cut(rest, importsEnd)
		if !found {
			return nil, fmt.Errorf("%s: no line %s", name, strings.TrimSpace(importsEnd))
		}
		pages[name] = before + importsBegin + importsOf(before+after, sources) + importsEnd + after
	}
	return pages, nil
}

func readSources(docs string) (sources []source, err error) {
	for _, pattern := range []string{"*_test.go", "programs/*/main.go", "../examples/worker/main.go", "../examples/metered/main.go"} {
		names, err := filepath.Glob(filepath.Join(docs, pattern))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
			if err != nil {
				return nil, err
			}
			link, err := filepath.Rel(docs, name)
			if err != nil {
				return nil, err
			}
			sources = append(sources, source{filepath.ToSlash(link), trimmed(string(text)), importsIn(file)})
		}
	}
	return sources, nil
}

func importsIn(file *ast.File) map[string]string {
	imports := map[string]string{}
	for _, spec := range file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := nameOf(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = p
	}
	return imports
}

var majorVersion = regexp.MustCompile(`/v\d+$`)

// nameOf guesses the name of a package from its path.
func nameOf(p string) string {
	return strings.TrimSuffix(strings.TrimPrefix(path.Base(majorVersion.ReplaceAllString(p, "")), "go-"), ".go")
}

var used = regexp.MustCompile(`\b([a-z]\w*)\.[A-Z]`)

// importsOf lists the imports of a page's snippets, and their files. A whole program
// shows its own.
func importsOf(page string, sources []source) string {
	paths := map[string]string{} // name before path, if the file renames the import
	files := map[string]bool{}
	for _, part := range strings.Split(page, "\n```go\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		i := slices.IndexFunc(sources, func(s source) bool { return has(s.lines, trimmed(block)) })
		if i < 0 {
			continue // docs' TestSnippets reports it
		}
		files[sources[i].name] = true
		if strings.HasPrefix(block, "package ") {
			continue
		}
		for _, match := range used.FindAllStringSubmatch(block, -1) {
			p := sources[i].imports[match[1]]
			if p == "" {
				continue
			}
			paths[p] = ""
			if match[1] != nameOf(p) {
				paths[p] = match[1] + " "
			}
		}
	}
	var b strings.Builder
	if len(paths) == 0 {
		b.WriteString("The snippets are the programs ")
	} else {
		b.WriteString("The snippets are parts of ")
	}
	for i, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case i == 0:
		case i == len(files)-1:
			b.WriteString(" and ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "[%s](%s)", strings.TrimPrefix(name, "../"), name)
	}
	if len(paths) == 0 {
		b.WriteString(", which CI runs.\n")
		return b.String()
	}
	b.WriteString(", which CI runs. They import:\n\n```go\nimport (\n")
	var groups []string // the standard library, and the others
	for _, standard := range []bool{true, false} {
		var group strings.Builder
		for _, p := range slices.Sorted(maps.Keys(paths)) {
			if standard != strings.Contains(p, ".") {
				fmt.Fprintf(&group, "\t%s%q\n", paths[p], p)
			}
		}
		if group.Len() > 0 {
			groups = append(groups, group.String())
		}
	}
	b.WriteString(strings.Join(groups, "\n"))
	b.WriteString(")\n```\n")
	return b.String()
}

func has(lines, block []string) bool {
	for i := 0; i+len(block) <= len(lines); i++ {
		if slices.Equal(lines[i:i+len(block)], block) {
			return true
		}
	}
	return false
}

func trimmed(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return lines
}
