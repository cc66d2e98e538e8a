package docs_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every picture is XML, has a title for people who do not see it, is in a page, and is
// readable on light and on dark ground.
func TestPictures(t *testing.T) {
	pictures, err := filepath.Glob("pictures/*.svg")
	require.NoError(t, err)
	require.NotEmpty(t, pictures)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	var all strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		all.Write(text)
	}
	for _, picture := range pictures {
		text, err := os.ReadFile(picture)
		require.NoError(t, err)
		d := xml.NewDecoder(strings.NewReader(string(text)))
		for err == nil {
			_, err = d.Token()
		}
		require.True(t, errors.Is(err, io.EOF), "%s: %v", picture, err)
		require.Contains(t, string(text), "<title", picture)
		require.Contains(t, string(text), "prefers-color-scheme: dark", picture)
		require.Contains(t, all.String(), "("+filepath.ToSlash(picture)+")", "no page shows it")
	}
}
