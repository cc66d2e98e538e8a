package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rule is a pattern of English that reads badly where it is frequent.
type rule struct {
	name    string
	pattern *regexp.Regexp
	most    float64 // in 1,000 words
	write   string  // instead
}

var rules = []rule{
	{
		"what-clause",
		regexp.MustCompile(`(?m)(?:^|[.:;,(]\s+|\b(?:of|for|from|with|to|in|by|on|and|or|that|do|does|is|are)\s+)[Ww]hat\s+\[?\w+`),
		0.3, "start with a concrete noun",
	},
	{"that of, those of", regexp.MustCompile(`\b(?:that|those) (?:of|in|with|from)\b`), 0.5, "repeat the noun"},
	{"one, ones", regexp.MustCompile(`\b(?:one|ones)\b`), 5, "repeat the noun"},
	{
		"is no, no more, nothing", regexp.MustCompile(`\b(?:is|are|has|have|was) no\b|\bno more\b|\bnothing\b|\bnobody\b`),
		1, "does not, is not",
	},
	{
		"comes again, goes on, stands still, holds up",
		regexp.MustCompile(`\b(?:come|comes|came) (?:again|back)\b|\b(?:go|goes|went) on\b|\bstands? still\b|\bholds? up\b|\bheld up\b`),
		0.5, "is redelivered, continues, is unavailable, blocks",
	},
}

var (
	question   = regexp.MustCompile(`[Ww]hat\s+is\b.*\?`)
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	linkTarget = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	word       = regexp.MustCompile(`[A-Za-z][\w'-]*`)
)

// text is prose and its position.
type text struct{ at, prose string }

// checkWords counts the rules in all texts together.
func checkWords(t *testing.T, texts []text) {
	t.Helper()
	words := 0
	for _, s := range texts {
		words += len(word.FindAllString(s.prose, -1))
	}
	require.Greater(t, words, 1_000)
	for _, r := range rules {
		var found []string
		for _, s := range texts {
			for _, match := range r.pattern.FindAllString(s.prose, -1) {
				found = append(found, s.at+": "+strings.TrimSpace(match))
			}
		}
		rate := float64(len(found)) * 1000 / float64(words)
		assert.LessOrEqual(t, rate, r.most, "%s: %d in %d words; write: %s\n%s", r.name, len(found), words, r.write, strings.Join(found, "\n"))
		t.Logf("%5.2f of %.1f %s", rate, r.most, r.name)
	}
}

// The pages are in plain English: see rules.
func TestWordsOfThePages(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	var texts []text
	for _, page := range append(pages, "../README.md", "../SECURITY.md", "../CONTRIBUTING.md") {
		if slices.Contains(notYet, page) {
			continue
		}
		p := prose(t, page)
		p = linkTarget.ReplaceAllString(inlineCode.ReplaceAllString(p, "x"), "$1")
		texts = append(texts, text{page, question.ReplaceAllString(p, "")})
	}
	checkWords(t, texts)
}

// The comments of exported names, of their exported fields and methods, and of packages
// are in plain English, too.
func TestWordsOfPublicComments(t *testing.T) {
	comments, _ := ofTheCode(t)
	checkWords(t, comments)
}

// The texts of errors and of log lines are in plain English, too.
func TestWordsOfErrors(t *testing.T) {
	_, failures := ofTheCode(t)
	checkWords(t, failures)
}

// ofTheCode returns the comments of exported names of packages that users import, and the
// texts of errors and log lines.
func ofTheCode(t *testing.T) (comments, failures []text) {
	t.Helper()
	outside := []string{"internal", "testdata", "examples", "bench", "docs", "tools", ".git"}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == ".." {
			return err
		}
		if d.IsDir() && slices.Contains(outside, d.Name()) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		add := func(texts *[]text, at token.Pos, prose string) {
			*texts = append(*texts, text{files.Position(at).String(), prose})
		}
		if file.Name.Name != "main" {
			for _, c := range commentsOf(file) {
				add(&comments, c.Pos(), unwrapped(c))
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s := failure(n); s != "" {
				add(&failures, n.Pos(), s)
			}
			return true
		})
		return nil
	}))
	return comments, failures
}

// commentsOf returns the comments that a file's users read.
func commentsOf(file *ast.File) (comments []*ast.CommentGroup) {
	exported := func(name *ast.Ident) bool { return name.IsExported() }
	add := func(groups ...*ast.CommentGroup) {
		for _, c := range groups {
			if c != nil {
				comments = append(comments, c)
			}
		}
	}
	add(file.Doc)
	for _, d := range file.Decls {
		f, isFunc := d.(*ast.FuncDecl)
		if isFunc && f.Name.IsExported() {
			add(f.Doc)
		}
		g, ok := d.(*ast.GenDecl)
		if !ok || !slices.ContainsFunc(declared(d), exported) {
			continue
		}
		add(g.Doc)
		ast.Inspect(g, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				add(n.Doc, n.Comment)
				return n.Name.IsExported()
			case *ast.ValueSpec:
				add(n.Doc, n.Comment)
				return false
			case *ast.Field:
				if len(n.Names) == 0 || slices.ContainsFunc(n.Names, exported) {
					add(n.Doc, n.Comment)
				}
			}
			return true
		})
	}
	return comments
}

// unwrapped returns the prose of a comment, each paragraph in one line.
func unwrapped(c *ast.CommentGroup) string {
	var b strings.Builder
	for line := range strings.Lines(c.Text()) {
		switch {
		case strings.HasPrefix(line, "\t"): // code
		case strings.TrimSpace(line) == "":
			b.WriteString("\n")
		default:
			b.WriteString(strings.TrimSpace(line) + " ")
		}
	}
	return b.String()
}

// failure returns the text of an error or of a log line that is made at n, or "".
func failure(n ast.Node) (s string) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"New", "Errorf", "Error", "Warn", "Info", "Debug", "LogAttrs"}, f.Sel.Name) {
		return ""
	}
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				part, _ := strconv.Unquote(lit.Value)
				s += part
			}
			_, sum := n.(*ast.BinaryExpr)
			return sum
		})
		if s != "" {
			break
		}
	}
	return s
}
