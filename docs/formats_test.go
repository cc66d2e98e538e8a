package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page of compatibility lists the golden files of all stored formats, and each file
// that it lists is there (law W4).
func TestFormatsAreListed(t *testing.T) {
	var files []string
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(filepath.Dir(path)) == "formats" {
			files = append(files, filepath.ToSlash(path))
		}
		return err
	}))
	require.Greater(t, len(files), 30)
	page, err := os.ReadFile("compatibility.md")
	require.NoError(t, err)
	var listed []string
	for _, match := range regexp.MustCompile(`\]\((\.\./[^)]*/testdata/formats/[^)]*)\)`).FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, match[1])
	}
	slices.Sort(files)
	slices.Sort(listed)
	require.Equal(t, files, listed)
}
