package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// chosen is a file for each package, with the number of the mutant to run.
const chosen = `package %s

import (
	"os"
	"strconv"
)

var mutant, _ = strconv.Atoi(os.Getenv("WEIR_MUTANT"))
`

// edit replaces a part of a text.
type edit struct {
	from, to int
	text     string
}

// schema returns the text of a file with these mutants in it. Each mutant is a changed
// copy of its function, which the original calls if the mutant is chosen.
func schema(internal, file string, some []int) (text string, err error) {
	b, err := os.ReadFile(filepath.Join(internal, filepath.FromSlash(file)))
	if err != nil {
		return "", err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, b, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	text = string(b)
	at := func(p token.Pos) int { return set.Position(p).Offset }
	named := map[*ast.FuncDecl]string{} // their arguments
	var copies strings.Builder
	var edits []edit
	for _, i := range some {
		m := mutants[i]
		if n := strings.Count(text, m.old); n != 1 {
			return "", fmt.Errorf("%v: its old text is found %d times, want once", m, n)
		}
		from := strings.Index(text, m.old)
		f := around(parsed, func(n ast.Node) bool { return at(n.Pos()) <= from && from+len(m.old) <= at(n.End()) })
		if f == nil {
			return "", fmt.Errorf("%v: its old text is not in one function", m)
		}
		args, ok := named[f]
		if !ok {
			var names []edit
			args, names = arguments(f, at)
			named[f] = args
			edits = append(edits, names...)
		}
		name := fmt.Sprintf("%sMutant%d", f.Name.Name, i+1)
		edits = append(edits, edit{at(f.Body.Lbrace) + 1, at(f.Body.Lbrace) + 1, dispatch(f, i+1, name, args)})
		body := text[at(f.Name.End()):from] + m.new + text[from+len(m.old):at(f.End())]
		fmt.Fprintf(&copies, "\n%s%s%s\n", text[at(f.Pos()):at(f.Name.Pos())], name, body)
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		text = text[:e.from] + e.text + text[e.to:]
	}
	return text + copies.String(), nil
}

// around returns the function whose body fulfils within, or nil.
func around(file *ast.File, within func(n ast.Node) bool) *ast.FuncDecl {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && within(f.Body) {
			return f
		}
	}
	return nil
}

// arguments returns the arguments for the copy of a function, and edits that name unnamed
// parameters.
func arguments(f *ast.FuncDecl, at func(p token.Pos) int) (args string, names []edit) {
	var all []string
	add := func(p *ast.Field, name string) {
		if _, variadic := p.Type.(*ast.Ellipsis); variadic {
			name += "..."
		}
		all = append(all, name)
	}
	for _, p := range f.Type.Params.List {
		unnamed := fmt.Sprintf("unnamed%d", len(all))
		if len(p.Names) == 0 {
			names = append(names, edit{at(p.Pos()), at(p.Pos()), unnamed + " "})
			add(p, unnamed)
		}
		for _, n := range p.Names {
			if n.Name != "_" {
				add(p, n.Name)
				continue
			}
			names = append(names, edit{at(n.Pos()), at(n.End()), unnamed})
			add(p, unnamed)
		}
	}
	return "(" + strings.Join(all, ", ") + ")", names
}

// dispatch returns the statement that calls a mutant's copy.
func dispatch(f *ast.FuncDecl, mutant int, name, args string) string {
	if f.Recv != nil {
		name = f.Recv.List[0].Names[0].Name + "." + name
	}
	if types := f.Type.TypeParams; types != nil {
		var all []string
		for _, t := range types.List {
			for _, n := range t.Names {
				all = append(all, n.Name)
			}
		}
		name += "[" + strings.Join(all, ", ") + "]"
	}
	if f.Type.Results == nil {
		return fmt.Sprintf(" if mutant == %d { %s%s; return }; ", mutant, name, args)
	}
	return fmt.Sprintf(" if mutant == %d { return %s%s }; ", mutant, name, args)
}
