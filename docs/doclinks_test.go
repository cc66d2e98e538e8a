package docs_test

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docLink is a name in brackets that looks like a link of a doc comment: a name, a type
// and a method, or either behind the name of a package.
var docLink = regexp.MustCompile(`(?:^|[\s(,;"'-])\[\*?((?:[a-z][a-z0-9]*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?)\](?:[\s.,;:!?)"'-]|$)`)

// goPackage has the names of a package, to which links can lead.
type goPackage struct {
	names   map[string]bool   // Name and Type.Method; fields, too
	open    map[string]bool   // types that embed others, whose methods are not known here
	imports map[string]string // by the name in the package
	docs    []goDoc
}

type goDoc struct {
	at   token.Position
	text string
}

// Every link in a doc comment leads to a name: otherwise readers see the brackets.
func TestDocLinks(t *testing.T) {
	packages := map[string]*goPackage{} // by directory
	files := token.NewFileSet()
	require.NoError(t, filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "testdata" {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(files, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		of := filepath.ToSlash(filepath.Dir(file))
		if packages[of] == nil {
			packages[of] = &goPackage{names: map[string]bool{}, open: map[string]bool{}, imports: map[string]string{}}
		}
		packages[of].add(files, parsed)
		return nil
	}))
	n := 0
	for _, p := range packages {
		for _, d := range p.docs {
			for _, match := range docLink.FindAllStringSubmatch(d.text, -1) {
				n++
				assert.True(t, p.has(packages, match[1]), "%s: the doc link [%s] leads nowhere", d.at, match[1])
			}
		}
	}
	require.Greater(t, n, 500)
}

// add adds the names and comments of a file.
func (p *goPackage) add(files *token.FileSet, file *ast.File) {
	doc := func(groups ...*ast.CommentGroup) {
		for _, g := range groups {
			if g != nil {
				p.docs = append(p.docs, goDoc{files.Position(g.Pos()), withoutCode(g.Text())})
			}
		}
	}
	doc(file.Doc)
	for _, i := range file.Imports {
		of, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(of)
		if i.Name != nil {
			name = i.Name.Name
		}
		p.imports[name] = of
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			doc(decl.Doc)
			name := decl.Name.Name
			if decl.Recv != nil {
				name = receiver(decl.Recv.List[0].Type) + "." + name
			}
			p.names[name] = true
		case *ast.GenDecl:
			doc(decl.Doc)
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					doc(spec.Doc, spec.Comment)
					for _, name := range spec.Names {
						p.names[name.Name] = true
					}
				case *ast.TypeSpec:
					doc(spec.Doc, spec.Comment)
					p.names[spec.Name.Name] = true
					p.addType(spec, doc)
				}
			}
		}
	}
}

// addType adds the fields and methods in the text of a type.
func (p *goPackage) addType(spec *ast.TypeSpec, doc func(groups ...*ast.CommentGroup)) {
	var fields *ast.FieldList
	switch of := spec.Type.(type) {
	case *ast.StructType:
		fields = of.Fields
	case *ast.InterfaceType:
		fields = of.Methods
	default:
		p.open[spec.Name.Name] = true // an alias, or a type of another type
		return
	}
	for _, field := range fields.List {
		doc(field.Doc, field.Comment)
		if len(field.Names) == 0 {
			p.open[spec.Name.Name] = true
		}
		for _, name := range field.Names {
			p.names[spec.Name.Name+"."+name.Name] = true
		}
	}
}

// receiver returns the name of the type of a method.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// has reports whether a link leads to a name. Names of other modules are not looked up.
func (p *goPackage) has(packages map[string]*goPackage, link string) bool {
	of, name, isOther := strings.Cut(link, ".")
	if !isOther || of != strings.ToLower(of[:1])+of[1:] {
		typ, _, isMember := strings.Cut(link, ".")
		return p.names[link] || isMember && p.open[typ]
	}
	imported, ok := p.imports[of]
	if !ok {
		_, ok = comment.DefaultLookupPackage(of)
		return ok
	}
	inside, ok := strings.CutPrefix(imported, "github.com/weirflow/weir")
	if !ok {
		return true
	}
	target := packages[".."+inside]
	return target == nil || target.has(packages, name)
}

// withoutCode returns a comment without its code blocks.
func withoutCode(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "  ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
