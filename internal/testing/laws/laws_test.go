// Package laws_test checks docs/laws.md, which lists the laws of DESIGN.md with a test for
// each.
//
// A test names a law in its comment: "Law A2: …", "(law A2)" or "laws A2, A3 and Q1".
package laws_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	slashpath "path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

var update = flag.Bool("update", false, "write docs/laws.md")

var (
	law      = regexp.MustCompile(`(?m)^- \*\*([A-Z][0-9])\*\* ((?:.+\n(?:  .*\n)*))`)
	mention  = regexp.MustCompile(`\b[Ll]aws? ([A-Z][0-9](?:(?:,? and |, )[A-Z][0-9])*)\b`)
	number   = regexp.MustCompile(`[A-Z][0-9]`)
	sentence = regexp.MustCompile(`^.*?\.(?: |$)`)
	isTest   = regexp.MustCompile(`^(Test|Fuzz)[^a-z]`)
)

// shown has the test that docs/laws.md links for each law: the test that shows best what
// the law means.
var shown = map[string]string{
	"A1": "asyncop/internal/tests/endings.TestElementsEndInOneWay",
	"A2": "asyncop/internal/tests/endings.TestConcurrentCompletionsCountOnce",
	"A3": "asyncop/internal/tests/timeouts.TestTimeoutIsTheTotalOverAllAttempts",
	"A4": "asyncop/internal/tests/retry.TestStrategyIsAskedWithTheAttemptsMade",
	"A5": "asyncop/internal/tests/endings.TestCancel_NoAttemptAfterIt",
	"A6": "asyncop/internal/tests/endings.TestUserCodeThatBreaksEndsItsElement",
	"B1": "backend.TestLawsUnderRandomSchedules",
	"B2": "backend.TestBackend_HourOfOutage",
	"B3": "backend.TestOperatorsTakeTurns",
	"B4": "backend.TestBackendComesBack",
	"B5": "backend.TestShared_RandomSchedules",
	"B6": "backend.TestBackend_Throttled",
	"C1": "asyncop/internal/tests/checkpoints.TestCheckpointHoldsWhatIsNotSettled",
	"C2": "flow.TestMerge_Checkpoints",
	"C3": "asyncop/internal/tests/checkpoints.TestFailedRunsCanBeRestarted",
	"D1": "asyncop/internal/tests/messages.TestMessages_SettledOnce",
	"D2": "asyncop/internal/tests/messages.TestMessages_SettledOnce",
	"D3": "delivery/internal/ladder.TestLadder_MessageThatAlwaysFails",
	"D4": "delivery.TestWithOrdered_FailureDelaysItsOwnKey",
	"D5": "delivery.TestRunWithASinkThatIsFull",
	"D6": "delivery/internal/ladder.TestLadder_MessageThatAlwaysFails",
	"F1": "asyncop/internal/tests/endings.TestCancelUnderBackpressure",
	"J1": "delivery/jobs.TestJobsRun_ProcessDies",
	"J2": "console/tests.FuzzHandler_ReaderChangesNothing",
	"J3": "console/tests.TestHostileMessages",
	"K1": "asyncop/internal/tests/order.TestKeyOrderUnderEveryDriver",
	"O1": "asyncop/internal/tests/observing.TestObserverHearsEveryEnd",
	"P1": "partitions.TestLeasesAtRandom",
	"Q1": "asyncop/internal/tests/order.TestOrderOfOutputs",
	"Q2": "asyncop/internal/tests/order.TestCapacityBoundsElementsInFlight",
	"T1": "timers.TestServiceAgainstModel",
	"W1": "delivery.TestQueueOfAWorker",
	"W2": "delivery.TestRunWithAMessageThatTheSinkNeverTakes",
	"W3": "backend.TestTenantsAreForgotten",
	"W4": "message.TestHeadersAndMembersOfALaterVersion",
	"W5": "delivery.TestRun_TwoPutsUnderOneID",
	"W6": "delivery.TestNewQueue_TypeThatTheCodecChanges",
	"X1": "ext/sqlite.TestKilledWorkersChargeOnce",
	"X2": "ext/sqlite/sqliterecords.TestKilledServers",
	"X3": "exactlyonce/server.TestMarksAreBounded",
}

// Every law has a test, tests name only existing laws, and docs/laws.md is up to date. To
// write it:
//
//	go test ./internal/testing/laws -update
func TestLawsHaveTests(t *testing.T) {
	t.Parallel()
	design, err := os.ReadFile(filepath.Join(root, "DESIGN.md"))
	require.NoError(t, err)
	tests := testsOfLaws(t)
	var table strings.Builder
	table.WriteString("# Laws and their tests\n\nThe laws of [DESIGN.md](../DESIGN.md#3-laws), each with a test that shows it. All tests of law A1:\n\n" +
		"```sh\ngrep -rnE '\\b[Ll]aws? [^:.]*\\bA1\\b' --include='*_test.go' .\n```\n\n" +
		"This page is generated: `go test ./internal/testing/laws -update`.\n\n| law | it begins | test |\n|---|---|---|\n")
	for _, m := range law.FindAllStringSubmatch(string(design), -1) {
		name := m[1]
		text := strings.Join(strings.Fields(m[2]), " ")
		text = strings.TrimRight(cmp.Or(sentence.FindString(text), text), " :.")
		assert.NotEmpty(t, tests[name], "law %s has no test that names it", name)
		file, isOfLaw := tests[name][shown[name]]
		assert.True(t, isOfLaw, "%q does not name law %s: choose another test in shown", shown[name], name)
		fmt.Fprintf(&table, "| **%s** | %s | [%s](../%s) |\n", name, text, testName(shown[name]), file)
		delete(tests, name)
	}
	assert.Empty(t, tests, "tests of laws that DESIGN.md does not have")

	page := filepath.Join(root, "docs", "laws.md")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(table.String()), 0o644)) //nolint:gosec // a page of the documentation
	}
	written, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, table.String(), strings.ReplaceAll(string(written), "\r\n", "\n"), "docs/laws.md has drifted: write it with -update")
}

// testName returns the name without its package.
func testName(test string) string { return test[strings.LastIndex(test, ".")+1:] }

// testsOfLaws returns the tests that name a law, by law: the file of each test by its
// package and name, such as "queue.TestConformance".
func testsOfLaws(t *testing.T) map[string]map[string]string {
	t.Helper()
	tests := map[string]map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		relative = filepath.ToSlash(relative)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Doc == nil || !isTest.MatchString(f.Name.Name) {
				continue
			}
			for _, laws := range mention.FindAllString(f.Doc.Text(), -1) {
				for _, l := range number.FindAllString(laws, -1) {
					if tests[l] == nil {
						tests[l] = map[string]string{}
					}
					tests[l][slashpath.Dir(relative)+"."+f.Name.Name] = relative
				}
			}
		}
		return err
	}))
	return tests
}
