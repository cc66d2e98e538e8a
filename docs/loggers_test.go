package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each logger of weir comes from guard.Logger, which hides the secrets of URLs in its
// lines.
func TestLoggersHideSecrets(t *testing.T) {
	written := regexp.MustCompile(`slog\.(Default|Debug|Info|Warn|Error|Log|LogAttrs|DebugContext|InfoContext|WarnContext|ErrorContext)\(`)
	seen := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		for _, other := range []string{"../bench", "../docs", "../examples", "../tools", "../internal/testing", "../.git"} {
			if path == other && d.IsDir() {
				return filepath.SkipDir
			}
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || path == "../internal/guard/logger.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen += strings.Count(string(text), "guard.Logger(")
		for line := range strings.Lines(string(text)) {
			code, _, _ := strings.Cut(line, "//")
			require.NotRegexp(t, written, code, "%s: use guard.Logger", path)
		}
		return nil
	}))
	require.Greater(t, seen, 20)
}
