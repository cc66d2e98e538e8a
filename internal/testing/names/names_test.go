// Package names_test checks that tests are found by their names: they begin with the type
// or option that they test, and each exported function and method of the core has one.
package names_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// standard are methods of interfaces of the standard library.
var standard = map[string]bool{
	"As": true, "Error": true, "GoString": true, "Is": true, "LogValue": true, "String": true, "Unwrap": true,
	"MarshalJSON": true, "MarshalText": true, "UnmarshalJSON": true, "UnmarshalText": true,
}

// elsewhere has the tests of types and functions that are not below their package, or that
// are one table or one suite for a whole type.
var elsewhere = map[string]string{
	"asyncop.CheckRun":                    "TestRunRefusesAWrongOperator",
	"asyncop.ReportCost":                  "TestReportCost",
	"asyncop.WithTimeoutFromFirstAttempt": "TestWithTimeoutFromFirstAttempt_Rate",
	"backend.Stats":                       "TestBackendComesBack",
	"backend.WithClock":                   "TestBackendComesBack",
	"backend.WithLogger":                  "TestDryRunSaysItOnce",
	"checkpoint.Coordinator":              "TestCoordinator",
	"checkpoint.Sink":                     "TestSink",
	"checkpoint.Source":                   "TestSource",
	"checkpoint/files.CSVInput":           "TestInputsFollowTheRules",
	"checkpoint/files.DirStore":           "TestDirStoreConforms",
	"checkpoint/files.LineInput":          "TestInputsFollowTheRules",
	"checkpoint/files.Output":             "TestFileOutputFollowsTheRules",
	"checkpoint/participant.Barrier":      "TestBarrierWaitsForOneElementOnly",
	"checkpoint/participant.NewBarrier":   "TestBarrierWaitsForOneElementOnly",
	"delivery.WithIdempotencyWindow":      "TestKilledWorkersChargeOnce",
	"delivery.WithLease":                  "TestQueueIsASource",
	"delivery/jobs.Jobs":                  "TestOpen_Conforms",
	"delivery/memory.Engine":              "TestOpen_Conforms",
	"delivery/store.Counts":               "TestOpen_Conforms",
	"delivery/store.Filter":               "TestOpen_Conforms",
	"exactlyonce/keys":                    "TestKeys",
	"flow.WithUpstreamCancel":             "TestWithUpstreamCancel_OfAFlow",
	"flow.WithUpstreamRunning":            "TestWithUpstreamRunning",
	"predicates.WithDeduplicated":         "TestWithDeduplicated_CallsAreRepeated",
	"strategies.RefuseUnknown":            "TestMatrix",
}

// vague are words that do not name a type, a function or an option.
var vague = words(`A All An Any As At Both By Does Each Either Every Everybody Few For From Half How Is It Many More
	Most Never No Nobody None Not Nothing Of On One Only Other Others Same Several Some That The These This Those Three Too
	Two What When Where Which While Who Whose Why Within Without`)

// Each exported function, option and method of the core is in the name of a test of its
// package, or of a package below. Constructors are found by their type. Methods that only
// return a value need no test of their own.
func TestNames_ExportedFunctions(t *testing.T) {
	t.Parallel()
	tree := read(t)
	checked := 0
	for _, p := range tree {
		if !p.isPublic {
			continue
		}
		tests := tree.testsBelow(p.dir)
		for _, f := range p.exported {
			checked++
			assert.True(t, isFound(f, p.dir, tests), "%s: %s is in no name of a test: rename the test that checks it, or write one", p.dir, f)
		}
	}
	assert.Greater(t, checked, 400)
	for subject, test := range elsewhere {
		assert.True(t, slices.Contains(tree.allTests(), test), "the test of %s does not exist: %s", subject, test)
	}
}

// A name that begins with a word such as The is found only by a reader who knows its
// sentence.
func TestNames_BeginWithTheirSubject(t *testing.T) {
	t.Parallel()
	tree := read(t)
	checked := 0
	for _, p := range tree {
		for _, test := range p.tests {
			checked++
			assert.False(t, isVague(test, p.declared), "%s: %s: begin the name with the type, function or option that it tests", p.dir, test)
		}
	}
	assert.Greater(t, checked, 2_000)
}

// The pages and .ci/run name existing tests. A pattern such as -run TestRun is the
// beginning of a name.
func TestNames_OfPages(t *testing.T) {
	t.Parallel()
	tests := read(t).allTests()
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	for _, page := range []string{".ci/run", "CONTRIBUTING.md", "DESIGN.md", "README.md", "bench/MEASUREMENTS.md", "bench/README.md"} {
		pages = append(pages, filepath.Join(root, page))
	}
	name := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, named := range name.FindAllString(string(text), -1) {
			checked++
			exists := slices.ContainsFunc(tests, func(test string) bool { return strings.HasPrefix(test, named) })
			assert.True(t, exists, "%s names a test that does not exist: %s", page, named)
		}
	}
	assert.Greater(t, checked, 50)
}

func TestIsVague(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{"NoRetry": true, "oneLine": true}
	for name, want := range map[string]bool{
		"TestAnOutage": true, "TestNoRetries": true, "FuzzTheReader": true, "TestWhat": true, "TestA_B": true,
		"TestAnswer": false, "TestNoRetry": false, "TestNoRetry_Conforms": false, "TestOneLine": false, "TestOneLineOfText": false, "TestRun_TwoRuns": false,
	} {
		assert.Equal(t, want, isVague(name, declared), name)
	}
}

func TestIsFound(t *testing.T) {
	t.Parallel()
	tests := []string{"TestWithLease_TooShort", "TestBackendStats", "TestCloseness"}
	for f, want := range map[function]bool{
		{name: "WithLease"}:                     true,
		{name: "NewBackend"}:                    true,
		{name: "NewQueue"}:                      false,
		{name: "New"}:                           true,
		{receiver: "Backend", name: "Stats"}:    true,
		{receiver: "Backend", name: "Close"}:    false,
		{receiver: "Engine", name: "Put"}:       true,
		{receiver: "LeaseError", name: "Error"}: true,
		{receiver: "Queue", name: "NewReader"}:  false,
	} {
		assert.Equal(t, want, isFound(f, "delivery/memory", tests), f.String())
	}
}

func TestIsAccessor(t *testing.T) {
	t.Parallel()
	const text = `package p

func (t *T) In() chan<- any { return t.in }
func (t *T) Len() int { return len(t.values) }
func (t *T) IsEmpty() bool { return t == nil || len(t.values) == 0 }
func (t *T) Now() time.Time { return t.clock.Now() }
func (t *T) Since() time.Duration { return t.clock.Since(t.start) }
func (t *T) At(i int) int { return t.values[i] }
func (t *T) Stop() { t.stopped = true }
func (t *T) Ended(err error) {}
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", text, parser.SkipObjectResolution)
	require.NoError(t, err)
	got := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		require.True(t, ok)
		got[f.Name.Name] = isAccessor(f)
	}
	assert.Equal(t, map[string]bool{"In": true, "Len": true, "IsEmpty": true, "Now": true, "Since": false, "At": false, "Stop": false, "Ended": true}, got)
}

// isVague reports whether a name begins with a vague word, and not with the name of a
// declaration of the package.
func isVague(test string, declared map[string]bool) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(test, "Test"), "Fuzz")
	end := strings.IndexFunc(rest[1:], func(r rune) bool { return !unicode.IsLower(r) })
	first := rest
	if end >= 0 {
		first = rest[:end+1]
	}
	if !vague[first] {
		return false
	}
	for name := range declared {
		after, isSubject := strings.CutPrefix(rest, strings.ToUpper(name[:1])+name[1:])
		if isSubject && (after == "" || !unicode.IsLower(rune(after[0]))) {
			return false
		}
	}
	return true
}

// isFound reports whether a function is in the name of one of the tests, or needs no test.
func isFound(f function, dir string, tests []string) bool {
	switch {
	case f.receiver != "" && standard[f.name]:
		return true
	case elsewhere[dir] != "" || elsewhere[dir+"."+f.receiver] != "" || elsewhere[dir+"."+f.name] != "":
		return true
	}
	name := f.name
	if f.receiver == "" {
		name = strings.TrimPrefix(name, "New")
	}
	if name == "" {
		return true // it makes the type of the package
	}
	return slices.ContainsFunc(tests, func(test string) bool { return hasWord(test, name) })
}

// hasWord reports whether name contains the word and does not continue it.
func hasWord(name, word string) bool {
	for {
		_, rest, found := strings.Cut(name, word)
		if !found {
			return false
		}
		if rest == "" || !unicode.IsLower(rune(rest[0])) {
			return true
		}
		name = rest
	}
}

// isAccessor reports whether a method without parameters only returns a value of its
// receiver: one expression whose calls have no arguments, except for len. A method
// without statements counts, too.
func isAccessor(f *ast.FuncDecl) bool {
	if f.Recv == nil || f.Body == nil {
		return false
	}
	if len(f.Body.List) == 0 {
		return true
	}
	if f.Type.Params.NumFields() > 0 || len(f.Body.List) > 1 {
		return false
	}
	result, ok := f.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(result.Results) != 1 {
		return false
	}
	computes := false
	ast.Inspect(result, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 0 {
			name, isName := call.Fun.(*ast.Ident)
			computes = computes || !isName || name.Name != "len"
		}
		return true
	})
	return !computes
}

// A function is an exported function of a package, or an exported method of an exported
// type.
type function struct {
	receiver string // empty for a function
	name     string
}

func (f function) String() string {
	if f.receiver == "" {
		return f.name
	}
	return f.receiver + "." + f.name
}

// A directory has the names that the checks compare.
type directory struct {
	dir      string // relative to the root, with slashes
	isPublic bool   // programs can import it from the core, and it is no suite for tests
	exported []function
	declared map[string]bool // functions, methods and types
	tests    []string        // Test and Fuzz functions, and Examples
}

type directories map[string]*directory

func (all directories) testsBelow(dir string) (tests []string) {
	for _, p := range all {
		if p.dir == dir || strings.HasPrefix(p.dir, dir+"/") {
			tests = append(tests, p.tests...)
		}
	}
	return tests
}

func (all directories) allTests() (tests []string) {
	for _, p := range all {
		tests = append(tests, p.tests...)
	}
	return tests
}

// read returns the declarations of all modules.
func read(t *testing.T) directories {
	t.Helper()
	all, err := readOnce()
	require.NoError(t, err)
	return all
}

var readOnce = sync.OnceValues(func() (directories, error) {
	all := directories{}
	var modules []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		switch {
		case d.IsDir() && relative != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || relative == "tools"):
			return fs.SkipDir
		case d.Name() == "go.mod" && relative != "go.mod":
			modules = append(modules, strings.TrimSuffix(relative, "go.mod"))
		case strings.HasSuffix(relative, ".go"):
			return all.readFile(path, strings.TrimSuffix(strings.TrimSuffix(relative, d.Name()), "/"))
		}
		return nil
	})
	for _, p := range all {
		isOfCore := !slices.ContainsFunc(modules, func(m string) bool { return strings.HasPrefix(p.dir+"/", m) })
		isSuite := strings.HasSuffix(p.dir, "test")
		p.isPublic = isOfCore && !isSuite && !strings.Contains(p.dir+"/", "internal/")
	}
	return all, err
})

func (all directories) readFile(path, dir string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p, ok := all[dir]
	if !ok {
		p = &directory{dir: dir, declared: map[string]bool{}}
		all[dir] = p
	}
	isTestFile := strings.HasSuffix(path, "_test.go")
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					p.declared[s.Name.Name] = true
				}
			}
		case *ast.FuncDecl:
			name := decl.Name.Name
			switch {
			case isTestFile && decl.Recv == nil && isTest.MatchString(name):
				p.tests = append(p.tests, name)
			case isTestFile:
				p.declared[name] = true
			default:
				p.declared[name] = true
				p.addExported(decl)
			}
		}
	}
	return nil
}

var isTest = regexp.MustCompile(`^(?:Test|Fuzz|Example)(?:[^a-z]|$)`)

func (p *directory) addExported(decl *ast.FuncDecl) {
	f := function{name: decl.Name.Name}
	if decl.Recv != nil {
		f.receiver = nameOf(decl.Recv.List[0].Type)
	}
	isExported := ast.IsExported(f.name) && (f.receiver == "" || ast.IsExported(f.receiver))
	if isExported && !isAccessor(decl) {
		p.exported = append(p.exported, f)
	}
}

// nameOf returns the name of the type of a receiver.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return nameOf(e.X)
	case *ast.IndexExpr:
		return nameOf(e.X)
	case *ast.IndexListExpr:
		return nameOf(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}

func words(text string) map[string]bool {
	set := map[string]bool{}
	for word := range strings.FieldsSeq(text) {
		set[word] = true
	}
	return set
}
