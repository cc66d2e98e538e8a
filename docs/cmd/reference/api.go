package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// apiPage lists all names that a program can use, a line each, without parameters' names:
// a removed or changed line can break a program. tools/release compares it with the last
// release's page.
func apiPage(packages []pkg) string {
	var lines []string
	for _, p := range packages {
		if _, test := strings.CutSuffix(p.doc.Name, "test"); test {
			continue
		}
		for _, line := range p.api() {
			lines = append(lines, p.title()+": "+line)
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

func (p pkg) api() (lines []string) {
	for _, file := range p.all {
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if !d.Name.IsExported() || !p.exportedReceiver(d) {
					continue
				}
				name := d.Name.Name
				if d.Recv != nil {
					name = "(" + p.code(d.Recv.List[0].Type) + ") " + name
				}
				lines = append(lines, "func "+name+p.shape(d.Type))
			case *ast.GenDecl:
				for _, s := range d.Specs {
					lines = append(lines, p.spec(d.Tok.String(), s)...)
				}
			}
		}
	}
	return lines
}

func (p pkg) exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	name := strings.TrimLeft(p.code(d.Recv.List[0].Type), "*")
	return ast.IsExported(name)
}

func (p pkg) spec(kind string, s ast.Spec) (lines []string) {
	switch s := s.(type) {
	case *ast.ValueSpec: // the value of a constant is not part of it, its type is
		for _, name := range s.Names {
			if name.IsExported() {
				line := kind + " " + name.Name
				if s.Type != nil {
					line += " " + p.code(s.Type)
				}
				lines = append(lines, line)
			}
		}
	case *ast.TypeSpec:
		if s.Name.IsExported() {
			lines = p.typeLines(s)
		}
	}
	return lines
}

func (p pkg) typeLines(s *ast.TypeSpec) []string {
	name := "type " + s.Name.Name + p.list(s.TypeParams, "[", "]", true)
	if s.Assign.IsValid() {
		return []string{name + " = " + p.code(s.Type)}
	}
	switch t := s.Type.(type) {
	case *ast.StructType: // a new field does not break programs that name the fields
		lines := []string{name + " struct"}
		for _, f := range t.Fields.List {
			kind := p.code(f.Type)
			for _, field := range f.Names {
				if field.IsExported() {
					lines = append(lines, "field "+s.Name.Name+"."+field.Name+" "+kind)
				}
			}
			if len(f.Names) == 0 {
				lines = append(lines, "field "+s.Name.Name+" embeds "+kind)
			}
		}
		return lines
	case *ast.InterfaceType: // in one line, because a new method breaks its implementations
		var methods []string
		for _, f := range t.Methods.List {
			if method, ok := f.Type.(*ast.FuncType); ok {
				methods = append(methods, f.Names[0].Name+p.shape(method))
			} else {
				methods = append(methods, p.code(f.Type))
			}
		}
		slices.Sort(methods)
		return []string{name + " interface { " + strings.Join(methods, "; ") + " }"}
	case *ast.FuncType:
		return []string{name + " func" + p.shape(t)}
	default:
		return []string{name + " " + p.code(t)}
	}
}

func (p pkg) shape(t *ast.FuncType) string {
	line := p.list(t.TypeParams, "[", "]", true) + "(" + p.list(t.Params, "", "", false) + ")"
	if results := p.list(t.Results, "", "", false); results != "" {
		line += " (" + results + ")"
	}
	return line
}

func (p pkg) list(list *ast.FieldList, before, after string, named bool) string {
	if list == nil {
		return ""
	}
	var parts []string
	for _, f := range list.List {
		kind := p.code(f.Type)
		if len(f.Names) == 0 {
			parts = append(parts, kind)
		}
		for _, name := range f.Names {
			if named {
				parts = append(parts, fmt.Sprintf("%s %s", name.Name, kind))
			} else {
				parts = append(parts, kind)
			}
		}
	}
	return before + strings.Join(parts, ", ") + after
}
