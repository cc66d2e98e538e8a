package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A patch version keeps all names of the last release. Before 1.0 a minor version may
// remove names.
func TestCompareAPI(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"-c", "user.name=a", "-c", "user.email=a@invalid"}, args...)
		if _, err := command(t.Context(), root, nil, "git", args...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string) {
		t.Helper()
		name := filepath.Join(root, apiFile)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "--quiet")
	write("a: func A()\na: func B()\n")
	git("add", "-A")
	git("commit", "--quiet", "-m", "1")
	git("tag", "v0.1.0")
	for _, c := range []struct {
		now, version string
		refused      bool
	}{
		{"a: func A()\na: func B()\na: func C()\n", "v0.1.1", false},
		{"a: func A()\n", "v0.1.1", true},
		{"a: func A(int)\na: func B()\n", "v0.1.1", true},
		{"a: func A()\n", "v0.2.0", false},
		{"a: func A()\n", dry, false},
	} {
		write(c.now)
		r := release{root: root, version: c.version}
		err := r.compareAPI(t.Context())
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "needs a higher number") {
			t.Errorf("%s with %q: %v", c.version, c.now, err)
		}
	}
}
