package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// failure is an error with a name.
type failure struct {
	name    string
	message string   // with … where it varies; "" if the code does not have it
	others  []string // further messages
	text    string
	fields  []field
}

func errorsPage(packages []pkg) string {
	var b strings.Builder
	b.WriteString("# Errors\n\n" + generated + "\nThe errors with a name. Match a variable with `errors.Is`, and a type with `errors.As`. " +
		"Find yours by its text in the table; … stands for what varies. [Troubleshooting](../troubleshooting.md) begins with what you see.\n\n" +
		"Other errors match their cause: `checkpoint: draining: context deadline exceeded: no report from …`, for example, matches the end of the context of `Finish`.\n\n" +
		"| the message begins with | is |\n|---|---|\n")
	type line struct{ message, link string }
	var lines []line
	var body strings.Builder
	for _, p := range packages {
		failures := p.failures()
		if len(failures) == 0 {
			continue
		}
		fmt.Fprintf(&body, "\n## %s\n\n```go\nimport %q\n```\n", p.title(), p.path)
		for _, f := range failures {
			anchor := strings.ToLower(p.doc.Name + f.name)
			for _, text := range f.messages() {
				lines = append(lines, line{text, fmt.Sprintf("[%s.%s](#%s)", p.doc.Name, f.name, anchor)})
			}
			fmt.Fprintf(&body, "\n### %s.%s\n\n", p.doc.Name, f.name)
			for _, text := range f.messages() {
				fmt.Fprintf(&body, "`%s`\n\n", text)
			}
			body.WriteString(f.text)
			if len(f.fields) > 0 {
				body.WriteString("\n| field | type | |\n|---|---|---|\n")
			}
			for _, f := range f.fields {
				fmt.Fprintf(&body, "| `%s` | `%s` | %s |\n", f.name, strings.ReplaceAll(f.kind, "|", "\\|"), f.text)
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return strings.Compare(a.message, b.message) })
	for _, l := range lines {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.message, l.link)
	}
	return b.String() + body.String()
}

// messages returns the texts with which the message may begin.
func (f failure) messages() []string {
	if f.message == "" {
		return nil
	}
	return append([]string{f.message}, f.others...)
}

// failures returns the errors of a package: variables first, then types.
func (p pkg) failures() (out []failure) {
	for _, file := range p.all {
		for _, d := range file.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.VAR {
				out = append(out, p.variables(d)...)
			}
		}
	}
	slices.SortFunc(out, func(a, b failure) int { return strings.Compare(a.name, b.name) })
	for _, t := range p.doc.Types {
		s := structOf(t.Decl)
		if s == nil || !ast.IsExported(t.Name) || !strings.HasSuffix(t.Name, "Error") {
			continue
		}
		first := p.methodMessage(t.Name)
		out = append(out, failure{name: t.Name, message: first, others: p.otherMessages(t.Name, first), text: p.markdown(t.Doc), fields: p.fields(s)})
	}
	return out
}

func (p pkg) variables(d *ast.GenDecl) (out []failure) {
	for _, spec := range d.Specs {
		spec := spec.(*ast.ValueSpec)
		comment := spec.Doc
		if comment == nil && len(d.Specs) == 1 {
			comment = d.Doc
		}
		for i, name := range spec.Names {
			if !name.IsExported() || !strings.HasPrefix(name.Name, "Err") || i >= len(spec.Values) {
				continue
			}
			f := failure{name: name.Name, text: p.markdown(comment.Text())}
			if other, ok := spec.Values[i].(*ast.SelectorExpr); ok {
				f.message = p.internalMessage(other)
				if f.message == "" {
					f.text = strings.TrimLeft(fmt.Sprintf("%s\n\nThe same value as `%s`.\n", strings.TrimSpace(f.text), p.code(other)), "\n")
				}
			} else {
				f.message = message(spec.Values[i])
			}
			out = append(out, f)
		}
	}
	return out
}

// internalMessage returns the message of a variable of another package, which users
// cannot import.
func (p pkg) internalMessage(e *ast.SelectorExpr) (text string) {
	name, _ := e.X.(*ast.Ident)
	for _, file := range p.all {
		path := importsIn(file)[name.Name]
		_, inside, ok := strings.Cut(path, "/weir/internal/")
		if !ok {
			continue
		}
		other, err := parse(filepath.Join(p.root, "internal", inside), path)
		if err != nil {
			return ""
		}
		for _, file := range other.all {
			ast.Inspect(file, func(n ast.Node) bool {
				if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == e.Sel.Name && len(v.Values) == 1 {
					text = message(v.Values[0])
				}
				return true
			})
		}
	}
	return text
}

// methodMessage returns the first text that a type's method Error can make, after a
// package's name if there is such a text.
func (p pkg) methodMessage(typ string) (text string) {
	for _, file := range p.all {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != "Error" || receiver(f) != typ {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok {
					m := strings.TrimSpace(verb.ReplaceAllString(message(e), "…"))
					if strings.Trim(m, "…: ") != "" && (text == "" || !strings.Contains(text, ": ") && strings.Contains(m, ": ")) {
						text = strings.ReplaceAll(m, "……", "…")
					}
				}
				return true
			})
		}
	}
	return text
}

// otherMessages returns the other texts that a type's method Error assigns to its
// variables. An assignment of a sum that ends with its own variable lengthens the text
// before it.
func (p pkg) otherMessages(typ, first string) (others []string) {
	for _, file := range p.all {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != "Error" || receiver(f) != typ {
				continue
			}
			last := ""
			ast.Inspect(f.Body, func(n ast.Node) bool {
				a, ok := n.(*ast.AssignStmt)
				if !ok || a.Tok == token.ADD_ASSIGN || len(a.Rhs) != 1 {
					return true
				}
				text := message(a.Rhs[0])
				if endsWith(a.Rhs[0], a.Lhs[0]) {
					text = strings.TrimSuffix(text, "…") + last
				}
				last = text
				text = strings.ReplaceAll(strings.TrimSpace(text), "……", "…")
				if strings.Contains(text, ": ") && text != first {
					others = append(others, text)
				}
				return true
			})
		}
	}
	return others
}

// endsWith reports whether e is a sum whose last part is the variable v.
func endsWith(e, v ast.Expr) bool {
	sum, isSum := e.(*ast.BinaryExpr)
	if !isSum {
		return false
	}
	part, isPart := sum.Y.(*ast.Ident)
	variable, isVariable := v.(*ast.Ident)
	return isPart && isVariable && part.Name == variable.Name
}

func receiver(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	name, _ := t.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

var verb = regexp.MustCompile(`%[+#]?[a-z]`)

// message returns the text of an expression, with … for parts that are not literals.
func message(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		return message(e.X) + message(e.Y)
	case *ast.CallExpr:
		if len(e.Args) == 0 {
			break
		}
		switch called := e.Fun.(type) {
		case *ast.SelectorExpr:
			switch called.Sel.Name {
			case "New", "MarkPermanent":
				return message(e.Args[0])
			case "Sprintf", "Errorf":
				return verb.ReplaceAllString(message(e.Args[0]), "…")
			}
		}
	}
	return "…"
}
