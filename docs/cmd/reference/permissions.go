package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// permissionsPage lists the rights that tests of JetStream, Kafka and PostgreSQL work
// with, and their comments.
func permissionsPage(root string) (string, error) {
	var b strings.Builder
	b.WriteString("# Permissions\n\n" + generated)
	for _, engine := range []struct{ title, test, intro string }{
		{
			"JetStream", "ext/jetstream/embedded/permissions_test.go", "Each part needs the right to subscribe to `_INBOX.>`, and to publish to these subjects. " +
				"The streams and the consumer have example names in capitals: use yours.",
		},
		{
			"Kafka", "ext/kafka/permissions_test.go", "Each part needs these rights (ACLs) on topics, groups and transactional ids, whose names are examples: use yours. " +
				"READ, WRITE and DELETE include DESCRIBE. Without one of them an error names it, and ends a start, a worker and a `Group`.",
		},
		{
			"PostgreSQL", "ext/postgres/permissions_test.go", "Each part needs these rights on tables, and `USAGE` on their schema. The tables have no " +
				"sequences that need a right. Without one of them an error names the table, and has the statements.",
		},
	} {
		err := permissionsOf(&b, filepath.Join(root, filepath.FromSlash(engine.test)), engine.title, engine.intro)
		if errors.Is(err, os.ErrNotExist) {
			return "", nil // a repository of a test
		}
		if err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

func permissionsOf(b *strings.Builder, name, title, intro string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", title, intro)
	comments := ast.NewCommentMap(fset, file, file.Comments)
	for _, v := range variable(file, "allowed").(*ast.CompositeLit).Elts {
		entry := v.(*ast.KeyValueExpr)
		key, err := strconv.Unquote(entry.Key.(*ast.BasicLit).Value)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "\n### %s\n\n", strings.ToUpper(key[:1])+key[1:])
		for _, comment := range comments[entry] {
			b.WriteString(identifier.ReplaceAllString(spaces.ReplaceAllString(strings.TrimSpace(comment.Text()), " "), "`$0`") + "\n\n")
		}
		ast.Inspect(entry.Value, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if n.Name == "ofEngine" {
					ast.Inspect(variable(file, n.Name), func(n ast.Node) bool { return subject(b, n) })
				}
			default:
				return subject(b, n)
			}
			return true
		})
	}
	return nil
}

func subject(b *strings.Builder, n ast.Node) bool {
	if text, ok := n.(*ast.BasicLit); ok {
		b.WriteString("- `" + strings.Trim(text.Value, `"`) + "`\n")
	}
	return true
}

func variable(file *ast.File, name string) (value ast.Expr) {
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == name {
			value = v.Values[0]
		}
		return value == nil
	})
	return value
}
