package docs_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// notYet are pages that do not list the imports of their snippets yet, and are not
// checked for plain words yet.
var notYet []string

// Every Go block of every page, of the README, and of an example with blocks, is code
// that the tests compile and run: a whole program of programs/, or consecutive lines of
// an example in a test file beside the page.
func TestSnippets(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	code := sources(t)
	for _, page := range append(pages, "../README.md", "../examples/hbase-like/README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		blocks := goBlocks(string(text))
		if !strings.HasPrefix(page, "../") && len(blocks) > 0 && !slices.Contains(notYet, page) {
			assert.Contains(t, string(text), "<!-- imports: ", "%s has snippets: begin a list of their imports, as the other pages do", page)
		}
		for _, block := range blocks {
			if strings.HasPrefix(block, "import (") {
				continue // docs/cmd/reference has made it
			}
			assert.True(t, contained(code, block), "%s has a snippet that no test has:\n%s", page, block)
		}
	}
}

// Every program prints the text of its output.txt. args.txt has its arguments, if there
// are any. A program that runs until it is interrupted is interrupted when it has printed
// the text.
func TestPrograms(t *testing.T) {
	sources, err := filepath.Glob("programs/*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	for _, path := range sources {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(dir, "output.txt"))
			require.NoError(t, err)
			args, _ := os.ReadFile(filepath.Join(dir, "args.txt"))
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			run := exec.CommandContext(t.Context(), program(t, filepath.Base(dir)), strings.Fields(string(args))...)
			run.Dir = t.TempDir()
			var logged strings.Builder
			run.Stderr = &logged
			out, err := run.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, run.Start())
			got := make([]byte, len(want))
			n, _ := io.ReadFull(out, got)
			if strings.Contains(string(source), "signal.NotifyContext") {
				require.NoError(t, run.Process.Signal(os.Interrupt))
			}
			rest, err := io.ReadAll(out)
			require.NoError(t, err)
			require.NoError(t, run.Wait(), "%s", &logged)
			assert.Equal(t, string(want), string(got[:n])+string(rest))
		})
	}
}

// sources returns the lines of all Go files, without their indentation.
func sources(t *testing.T) (files [][]string) {
	t.Helper()
	for _, pattern := range []string{"*_test.go", "programs/*/main.go", "../examples/worker/main.go", "../examples/metered/main.go"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			files = append(files, trimmed(string(text)))
		}
	}
	return files
}

// goBlocks returns the contents of the fenced blocks marked go.
func goBlocks(page string) (blocks []string) {
	for _, part := range strings.Split(page, "\n```go\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block)
	}
	return blocks
}

// The README is read by people who do not know yet whether they want to read more.
func TestReadme_IsShort(t *testing.T) {
	require.LessOrEqual(t, len(strings.Fields(prose(t, "../README.md"))), 1_000, "words")
}

func contained(files [][]string, block string) bool {
	want := trimmed(block)
	for _, lines := range files {
		for i := 0; i+len(want) <= len(lines); i++ {
			if equal(lines[i:i+len(want)], want) {
				return true
			}
		}
	}
	return false
}

func equal(a, b []string) bool {
	for i := range b {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// trimmed returns the lines without indentation, since a block stands further left than
// its code.
func trimmed(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return lines
}
