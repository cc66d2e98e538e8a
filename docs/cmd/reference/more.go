package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// metricsPage documents the packages that report numbers.
func metricsPage(packages []pkg) string {
	var b strings.Builder
	b.WriteString("# Metrics and traces\n\n" + generated + "\n[Observing](../observing.md) has queries, and [Alerts](../operate.md#alerts) alerts.\n")
	for _, p := range packages {
		if p.doc.Name == "weirprom" || p.doc.Name == "weirotel" {
			fmt.Fprintf(&b, "\n## %s\n\n```go\nimport %q\n```\n\n%s", p.title(), p.path, p.markdown(p.doc.Doc))
		}
	}
	return b.String()
}

// headersPage lists a message's headers beside their fields of Meta.
func headersPage(packages []pkg) string {
	var b strings.Builder
	b.WriteString("# Headers of a message\n\n" + generated + "\nJetStream and Kafka carry the history of a message in headers, SQL engines in a column. " +
		"A program reads it as `message.Meta`. A worker passes on headers that it does not know.\n\n| header | field of Meta | |\n|---|---|---|\n")
	for _, p := range packages {
		if p.title() != "message" {
			continue
		}
		texts := map[string]field{} // by field
		for _, t := range p.doc.Types {
			if s := structOf(t.Decl); s != nil && (t.Name == "Meta" || t.Name == "Origin") {
				for _, f := range p.fields(s) {
					texts[f.name] = f
				}
			}
		}
		for _, file := range p.all {
			for _, header := range headersIn(file) {
				f := texts[header.field]
				shown := "`" + header.field + "`"
				if f.name == "" {
					shown = ""
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", header.name, shown, f.text)
			}
		}
	}
	return b.String()
}

type header struct{ name, field string }

// headersIn returns a file's constants headerX, in order.
func headersIn(file *ast.File) (headers []header) {
	for _, d := range file.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			spec := spec.(*ast.ValueSpec)
			rest, ok := strings.CutPrefix(spec.Names[0].Name, "header")
			if !ok || len(spec.Values) != 1 {
				continue
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					headers = append(headers, header{s, rest})
				}
			}
		}
	}
	return headers
}

// tablesPage has the statements that make the tables of SQL engines.
func tablesPage(root string) (string, error) {
	var b strings.Builder
	b.WriteString("# Tables\n\n" + generated +
		"\nThe files of migrations, in order. [Migrations with your tool](../operate.md#migrations-with-your-tool) says how to run them.\n")
	for _, dir := range []string{
		"ext/postgres/migrations", "ext/postgres/pgcheckpoint/migrations", "ext/postgres/pgrecords/migrations",
		"ext/sqlite/migrations", "ext/sqlite/sqliterecords/migrations", "ext/sqlite/sqliteanswers/migrations", "exactlyonce/keys/migrations/postgresql", "exactlyonce/keys/migrations/sqlite",
	} {
		names, err := filepath.Glob(filepath.Join(root, dir, "*.sql"))
		if err != nil {
			return "", err
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "\n## %s\n", dir)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "\n%s:\n\n```sql\n%s\n```\n", filepath.Base(name), strings.TrimSpace(string(text)))
		}
	}
	return b.String(), nil
}

// commandsPage has the help of the command weir and of its subcommands, if the root has
// its source.
func commandsPage(root string) (string, error) {
	var b strings.Builder
	b.WriteString("# The command weir\n\n" + generated + "\n[Running the dead letters](../dead-letters.md) shows how it is used.\n")
	if _, err := os.Stat(filepath.Join(root, "cmd", "weir")); err != nil {
		return b.String(), nil
	}
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	exe := filepath.Join(dir, "weir")
	build := exec.Command("go", "build", "-o", exe, "./cmd/weir")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if err := commandHelp(&b, exe, nil); err != nil {
		return "", err
	}
	return b.String(), nil
}

// commandHelp writes a command's help, and then its subcommands'.
func commandHelp(b *strings.Builder, exe string, args []string) error {
	cmd := exec.Command(exe, append(args, "-h")...)
	cmd.Env = append(os.Environ(), "WEIR_DB=", "COLUMNS=80")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("weir %v: %w", args, err)
	}
	help := strings.TrimSpace(string(out))
	title := strings.Join(append([]string{"weir"}, args...), " ")
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n", title, help)
	_, list, found := strings.Cut(help, "Available Commands:\n")
	if !found {
		return nil
	}
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			break
		}
		if !strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "   ") || fields[0] == "help" || fields[0] == "completion" {
			continue
		}
		if err := commandHelp(b, exe, append(slices.Clip(args), fields[0])); err != nil {
			return err
		}
	}
	return nil
}
