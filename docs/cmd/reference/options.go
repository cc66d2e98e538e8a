package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// setting is a function that makes an option, or a struct with settings.
type setting struct {
	name, code, text string
	fields           []field
}

type field struct{ name, kind, text string }

func optionsPage(packages []pkg) string {
	var b strings.Builder
	b.WriteString("# Options\n\n" + generated +
		"\nAll options of all packages, and the fields of structs with settings, whose zero values are the defaults. An option panics on a value outside of its range.\n")
	for _, p := range packages {
		settings := p.settings()
		if len(settings) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n```go\nimport %q\n```\n", p.title(), p.path)
		for _, s := range settings {
			fmt.Fprintf(&b, "\n### %s.%s\n\n", p.doc.Name, s.name)
			if s.code != "" {
				fmt.Fprintf(&b, "`%s`\n\n", s.code)
			}
			b.WriteString(s.text)
			if len(s.fields) > 0 {
				b.WriteString("\n| field | type | |\n|---|---|---|\n")
			}
			for _, f := range s.fields {
				fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", f.name, strings.ReplaceAll(f.kind, "|", "\\|"), f.text)
			}
		}
	}
	return b.String()
}

// settings returns a package's options and structs by name.
func (p pkg) settings() (out []setting) {
	for _, t := range p.doc.Types {
		if !ast.IsExported(t.Name) {
			continue
		}
		if strings.HasSuffix(t.Name, "Option") || strings.HasSuffix(t.Name, "Config") {
			for _, f := range t.Funcs {
				if !ast.IsExported(f.Name) {
					continue
				}
				out = append(out, setting{name: f.Name, code: p.signature(f.Decl), text: p.markdown(f.Doc)})
			}
		}
		if s := structOf(t.Decl); s != nil && (strings.HasSuffix(t.Name, "Config") || t.Name == "Layer") {
			out = append(out, setting{name: t.Name, text: p.markdown(t.Doc), fields: p.fields(s)})
		}
	}
	slices.SortStableFunc(out, func(a, b setting) int { return strings.Compare(a.name, b.name) })
	return out
}

func structOf(d *ast.GenDecl) *ast.StructType {
	s, _ := d.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
	return s
}

func (p pkg) fields(s *ast.StructType) (out []field) {
	for _, f := range s.Fields.List {
		text := f.Doc.Text()
		if f.Comment != nil {
			text += " " + f.Comment.Text()
		}
		for _, name := range f.Names {
			if name.IsExported() {
				out = append(out, field{name.Name, p.code(f.Type), p.cell(text)})
			}
		}
	}
	return out
}
