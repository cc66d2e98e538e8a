package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
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
	most    [3]float64 // in 1,000 words of pages, public comments and errors: the aim of all is that of pages
	write   string     // in its place
}

var rules = []rule{
	{
		"what-clause",
		regexp.MustCompile(`(?m)(?:^|[.:;,(]\s+|\b(?:of|for|from|with|to|in|by|on|and|or|that|do|does|is|are)\s+)[Ww]hat\s+\w+`),
		[3]float64{0.3, 3.5, 0.5},
		"start with a concrete noun",
	},
	{"that of, those of", regexp.MustCompile(`\b(?:that|those) (?:of|in|with|from)\b`), [3]float64{0.5, 1.5, 0.6}, "repeat the noun"},
	{"one, ones", regexp.MustCompile(`\b(?:one|ones)\b`), [3]float64{5, 8.2, 5}, "repeat the noun"},
	{
		"is no, no more, nothing", regexp.MustCompile(`\b(?:is|are|has|have|was) no\b|\bno more\b|\bnothing\b|\bnobody\b`),
		[3]float64{1, 3.2, 3.8},
		"does not, is not",
	},
	{
		"comes again, goes on, stands still, holds up",
		regexp.MustCompile(`\b(?:come|comes|came) (?:again|back)\b|\b(?:go|goes|went) on\b|\bstands? still\b|\bholds? up\b|\bheld up\b`),
		[3]float64{0.5, 1.2, 1.2},
		"is redelivered, continues, is unavailable, blocks",
	},
}

var (
	question   = regexp.MustCompile(`[Ww]hat\s+is\b.*\?`)
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	linkTarget = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	word       = regexp.MustCompile(`[A-Za-z][\w'-]*`)
)

// text is prose with the place that it comes from.
type text struct{ place, prose string }

const (
	ofPages = iota
	ofComments
	ofErrors
)

// checkWords counts the rules in all texts together.
func checkWords(t *testing.T, kind int, texts []text) {
	t.Helper()
	words := 0
	for _, s := range texts {
		words += len(word.FindAllString(s.prose, -1))
	}
	require.Greater(t, words, 1_000)
	for _, r := range rules {
		var places []string
		for _, s := range texts {
			for _, found := range r.pattern.FindAllString(s.prose, -1) {
				places = append(places, s.place+": "+strings.TrimSpace(found))
			}
		}
		rate := float64(len(places)) * 1000 / float64(words)
		assert.LessOrEqual(t, rate, r.most[kind], "%s: %d in %d words; write: %s\n%s", r.name, len(places), words, r.write, strings.Join(places, "\n"))
		t.Logf("%5.2f of %.1f %s", rate, r.most[kind], r.name)
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
	checkWords(t, ofPages, texts)
}

// So are the comments of exported names, and of packages.
func TestWordsOfPublicComments(t *testing.T) {
	comments, _ := ofTheCode(t)
	checkWords(t, ofComments, comments)
}

// So are the errors.
func TestWordsOfErrors(t *testing.T) {
	_, failures := ofTheCode(t)
	checkWords(t, ofErrors, failures)
}

// ofTheCode returns the comments of exported names of packages that users import, and the texts of errors.
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
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if file.Name.Name != "main" {
			comments = append(comments, commentsOf(path, file)...)
		}
		failures = append(failures, failuresOf(path, file)...)
		return nil
	}))
	return comments, failures
}

func commentsOf(path string, file *ast.File) (comments []text) {
	add := func(c *ast.CommentGroup) {
		var lines []string
		for line := range strings.Lines(c.Text()) {
			if !strings.HasPrefix(line, "\t") { // code
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		comments = append(comments, text{path, strings.Join(lines, "\n")})
	}
	add(file.Doc)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				add(d.Doc)
			}
		case *ast.GenDecl:
			for _, name := range declared(d) {
				if name.IsExported() {
					add(d.Doc)
					break
				}
			}
		}
	}
	return comments
}

func failuresOf(path string, file *ast.File) (failures []text) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if lit, isText := call.Args[0].(*ast.BasicLit); ok && isText && (f.Sel.Name == "Errorf" || f.Sel.Name == "New") {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				failures = append(failures, text{path, s})
			}
		}
		return true
	})
	return failures
}
