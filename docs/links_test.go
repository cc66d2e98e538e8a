package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Every link to a file of the repository, and to a heading in it, leads somewhere.
func TestLinks(t *testing.T) {
	n := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		for _, match := range link.FindAllStringSubmatch(prose(t, path), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			n++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); !assert.NoError(t, err, "%s: %s", path, match[1]) || anchor == "" {
				continue
			}
			if info, err := os.Stat(file); err == nil && info.IsDir() {
				file = filepath.Join(file, "README.md")
			}
			assert.True(t, slices.Contains(anchors(prose(t, file)), anchor), "%s: %s has no such heading", path, match[1])
		}
		return nil
	}))
	require.Greater(t, n, 200)
}

// prose returns a page without its code blocks.
func prose(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return fenced.ReplaceAllString(string(text), "")
}

// anchors returns the names of a page's headings, as GitHub makes them.
func anchors(text string) (names []string) {
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		name := noSlug.ReplaceAllString(strings.ToLower(match[1]), "")
		names = append(names, strings.ReplaceAll(strings.TrimSpace(name), " ", "-"))
	}
	return names
}
