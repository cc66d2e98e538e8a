// Package words_test counts patterns of bad English in the comments of all code except
// tests: shipped code, conformance suites, test support and examples. Each package has
// limits, which may only go down.
package words_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// rule is a pattern of English that reads badly if it is frequent.
type rule struct {
	name    string
	pattern *regexp.Regexp
	aim     float64 // per 1,000 words
	write   string  // the better words
}

var word = regexp.MustCompile(`[A-Za-z][\w'-]*`)

// limitsFile holds the limits of packages that do not meet the aims yet, by package and
// rule.
const limitsFile = "testdata/words.json"

// updateLimits is the environment variable that makes the test lower the limits to the
// current rates. It never raises a limit and never adds a package: a package without
// limits must meet the aims.
const updateLimits = "WEIR_UPDATE_WORDS"

// rules are patterns in lines of comments.
var rules = []rule{
	{
		"what-clause",
		regexp.MustCompile(`(?:^|[.:;,(]\s+|\b(?:is|are|was|of|for|from|with|to|in|by|on|and|or|that|do|does|as)\s+)[Ww]hat\s+\w+`),
		0.4, "a noun",
	},
	{"that of", regexp.MustCompile(`\b(?:that|those) (?:of|in|with|from|which|that|who)\b`), 0.15, "repeat the noun"},
	{"one that", regexp.MustCompile(`\b(?:one|ones) (?:that|of|which|with|whose|in)\b`), 0.5, "repeat the noun"},
	{"says", regexp.MustCompile(`\b(?:says?|said|tells?|told|hears?|heard|learns?|wants|knows of)\b`), 0.5, "returns, reports, requires"},
	{"nobody", regexp.MustCompile(`\b(?:nobody|none|nothing|no one|nowhere)\b`), 0.7, "the positive state"},
	{
		"goes on",
		regexp.MustCompile(`\b(?:go|goes|went|going) on\b|\b(?:come|comes|came) (?:again|back)\b|\b(?:let|lets) go\b` +
			`|\bgives? (?:it |them )?back\b|\bany more\b|\bholds? up\b|\bstands? (?:still|beside|for)\b`),
		0.15, "continues, is redelivered, releases",
	},
	{"colon for if", regexp.MustCompile(`(?:;|\.)\s*(?:nil|0|zero|false|true|else|""): \w`), 0.05, "nil if ..."},
}

// wide is the rule about the width of comment lines, in percent.
const (
	wide        = "wide"
	wideAim     = 3
	wideColumns = 90
)

// comments counts the comments of a package.
type comments struct {
	words, lines int
	hits         map[string][]string // by rule: position and text
}

// rate returns the violations of a rule per 1,000 words, or in percent of the lines for
// wide.
func (c *comments) rate(rule string) float64 {
	n := float64(len(c.hits[rule]))
	if rule == wide {
		return 100 * n / float64(max(1, c.lines))
	}
	return 1000 * n / float64(max(1, c.words))
}

// allowed returns how often a rule may be violated under a limit. Even a small package
// may violate each rule once.
func (c *comments) allowed(rule string, limit float64) int {
	n := limit * float64(c.words) / 1000
	if rule == wide {
		n = limit * float64(c.lines) / 100
	}
	return max(1, int(n+1e-9))
}

// add counts a line of a comment. whole is the complete line of the file.
func (c *comments) add(at, text, whole string) {
	c.lines++
	c.words += len(word.FindAllString(text, -1))
	note := func(rule string) { c.hits[rule] = append(c.hits[rule], at+": "+text) }
	if strings.HasPrefix(strings.TrimSpace(whole), "//") && len([]rune(strings.ReplaceAll(whole, "\t", "    "))) > wideColumns {
		note(wide)
	}
	for _, r := range rules {
		for range r.pattern.FindAllString(text, -1) {
			note(r.name)
		}
	}
}

var directive = regexp.MustCompile(`^//(?:go:|nolint|line )`)

// allComments returns the comments of all Go files except tests, by directory.
func allComments(t *testing.T, root string) map[string]*comments {
	t.Helper()
	all := map[string]*comments{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "target" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(relative))
		if all[dir] == nil {
			all[dir] = &comments{hits: map[string][]string{}}
		}
		return all[dir].addFile(path)
	}))
	return all
}

func (c *comments) addFile(path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	whole := strings.Split(string(source), "\n")
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, group := range file.Comments {
		for _, line := range group.List {
			if !strings.HasPrefix(line.Text, "//") || directive.MatchString(line.Text) {
				continue
			}
			at := files.Position(line.Pos())
			c.add(fmt.Sprintf("%s:%d", strings.TrimPrefix(filepath.ToSlash(path), root+"/"), at.Line), strings.TrimSpace(line.Text[2:]), strings.TrimSuffix(whole[at.Line-1], "\r"))
		}
	}
	return nil
}

// limits are the limits of packages that do not meet the aims, by rule.
type limits map[string]map[string]float64

func aims() map[string]float64 {
	all := map[string]float64{wide: wideAim}
	for _, r := range rules {
		all[r.name] = r.aim
	}
	return all
}

// advice returns the better words for a pattern.
func advice(rule string) string {
	for _, r := range rules {
		if r.name == rule {
			return r.write
		}
	}
	return fmt.Sprintf("lines of at most %d columns", wideColumns)
}

// limit returns the package's limit for a rule, or the aim.
func (l limits) limit(dir, rule string) float64 { return max(l[dir][rule], aims()[rule]) }

// lowered returns limits for the current rates where those are below l, rounded up to one
// decimal. If l is nil, the current rates become the limits.
func (l limits) lowered(all map[string]*comments) limits {
	now := limits{}
	for dir, c := range all {
		for rule, aim := range aims() {
			limit := math.Ceil(c.rate(rule)*10) / 10
			if l != nil {
				limit = min(limit, l.limit(dir, rule))
			}
			if limit <= aim || len(c.hits[rule]) <= c.allowed(rule, aim) {
				continue
			}
			if now[dir] == nil {
				now[dir] = map[string]float64{}
			}
			now[dir][rule] = limit
		}
	}
	return now
}

func readLimits(t *testing.T, name string) (l limits) {
	t.Helper()
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &l))
	return l
}

func (l limits) write(t *testing.T, name string) {
	t.Helper()
	b, err := json.MarshalIndent(l, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, append(b, '\n'), 0o600))
}

// broken returns a line for each rule that a package violates too often.
func (l limits) broken(all map[string]*comments) (lines []string) {
	for dir, c := range all {
		for rule := range aims() {
			if n, limit := len(c.hits[rule]), l.limit(dir, rule); n > c.allowed(rule, limit) {
				lines = append(lines, fmt.Sprintf("%s: %s: %d times, at most %d are allowed (rate %.2f, limit %.2f); write %s:\n\t%s",
					dir, rule, n, c.allowed(rule, limit), c.rate(rule), limit, advice(rule), strings.Join(c.hits[rule], "\n\t")))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// The comments of all code, conformance suites and test support are in plain English: see
// rules. WEIR_UPDATE_WORDS=1 lowers the limits to the current rates.
func TestWords_Comments(t *testing.T) {
	all := allComments(t, root)
	require.Greater(t, len(all), 100, "packages")
	l := readLimits(t, limitsFile)
	if os.Getenv(updateLimits) != "" {
		l = l.lowered(all)
		l.write(t, limitsFile)
	}
	require.NotNil(t, l, "%s is missing", limitsFile)
	for dir := range l {
		assert.Contains(t, all, dir, "%s has limits of a directory without Go files: run the test with %s=1", limitsFile, updateLimits)
	}
	for _, line := range l.broken(all) {
		assert.Fail(t, "a package breaks a rule of plain English too often", line)
	}
}

func countOf(lines ...string) *comments {
	c := &comments{hits: map[string][]string{}}
	for i, line := range lines {
		c.add(fmt.Sprintf("x.go:%d", i+1), line, "// "+line)
	}
	return c
}

func TestWordsLimits_Patterns(t *testing.T) {
	for _, line := range []string{
		"what-clause: Report is what a core reports", "that of: the queue is that of the source", "one that: it is one that waits",
		"says: it says so", "nobody: none is there", "goes on: the loop goes on", "colon for if: the backend; nil: it has none of them",
		"wide: " + strings.Repeat("wide ", 20),
	} {
		rule, text, _ := strings.Cut(line, ": ")
		require.Len(t, countOf(text).hits[rule], 1, line)
	}
	require.Empty(t, countOf("Report describes an element to the driver.").hits)
}

func TestWordsLimits_OnlyGoDown(t *testing.T) {
	clean := strings.Repeat("the loop takes elements ", 250) // 1,000 words
	three := countOf(clean, "it says so", "it says so", "it says so")
	two := countOf(clean, "it says so", "it says so")
	l := limits(nil).lowered(map[string]*comments{"a": two})
	require.InDelta(t, 2.0, l["a"]["says"], 0)
	require.Empty(t, l.broken(map[string]*comments{"a": two}))

	require.Len(t, l.broken(map[string]*comments{"a": three}), 1)
	raised := l.lowered(map[string]*comments{"a": three})
	require.InDelta(t, 2.0, raised["a"]["says"], 0, "a limit is not raised")
	require.Len(t, raised.broken(map[string]*comments{"a": three}), 1)

	require.Len(t, l.broken(map[string]*comments{"b": two}), 1, "a package without limits must meet the aims")
	require.Empty(t, l.lowered(map[string]*comments{"b": two}), "nor does it get limits")

	require.Empty(t, l.lowered(map[string]*comments{"a": countOf(clean)}), "limits that are met are removed")
}
