package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

const prefix = "github.com/weirflow/weir"

// private are modules that users do not import. The release leaves them unchanged.
var private = []string{"bench", "console/tests", "docs", "examples", "exactlyonce/lincheck"}

type module struct {
	dir    string // path in the repository, with slashes; "." for the core
	path   string
	needs  []string
	zip    string // its line in go.sum, once tagged
	modSum string
}

func (m *module) tag(version string) string {
	if m.dir == "." {
		return version
	}
	return m.dir + "/" + version
}

// tag makes the release commit in a clone, and its tags. A module's go.sum has the sums
// of required modules, so those are tagged first. The go command computes the sums from
// the repository, as for users.
func (r *release) tag(ctx context.Context) error {
	r.tree = filepath.Join(r.dir, "weir")
	if _, err := command(ctx, r.dir, nil, "git", "clone", "--quiet", r.root, r.tree); err != nil {
		return err
	}
	if err := r.readModules(); err != nil {
		return err
	}
	if err := r.changelog(); err != nil {
		return err
	}
	for _, m := range r.modules {
		if err := r.require(m); err != nil {
			return err
		}
	}
	if _, err := r.git(ctx, "commit", "--quiet", "--all", "--message", "weir "+r.version); err != nil {
		return err
	}
	for left := slices.Clone(r.modules); len(left) > 0; {
		ready, rest := r.split(left)
		if len(ready) == 0 {
			return fmt.Errorf("modules need each other in a circle: %s", rest[0].path)
		}
		if err := r.download(ctx, ready, filepath.Join(r.dir, "draft")); err != nil {
			return err
		}
		if err := r.addSums(ctx, ready); err != nil {
			return err
		}
		left = rest
	}
	sums := map[string]string{}
	for _, m := range r.modules {
		sums[m.path] = m.zip
	}
	if err := r.download(ctx, r.modules, filepath.Join(r.dir, "proxy")); err != nil {
		return err
	}
	for _, m := range r.modules {
		if sums[m.path] != m.zip {
			return fmt.Errorf("%s has another sum than when it was tagged: %s and %s", m.path, sums[m.path], m.zip)
		}
	}
	return os.RemoveAll(filepath.Join(r.dir, "draft"))
}

// split separates the modules that do not require another one in left.
func (r *release) split(left []*module) (ready, rest []*module) {
	for _, m := range left {
		if slices.ContainsFunc(left, func(other *module) bool { return slices.Contains(m.needs, other.path) }) {
			rest = append(rest, m)
		} else {
			ready = append(ready, m)
		}
	}
	return ready, rest
}

func (r *release) readModules() error {
	text, err := os.ReadFile(filepath.Join(r.tree, "go.work"))
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return err
	}
	for _, use := range work.Use {
		dir := filepath.ToSlash(filepath.Clean(use.Path))
		if slices.Contains(private, dir) {
			continue
		}
		file, err := r.modFile(dir)
		if err != nil {
			return err
		}
		m := &module{dir: dir, path: file.Module.Mod.Path}
		for _, need := range file.Require {
			if ours(need.Mod.Path) {
				m.needs = append(m.needs, need.Mod.Path)
			}
		}
		r.modules = append(r.modules, m)
	}
	for _, m := range r.modules {
		for _, need := range m.needs {
			if !slices.ContainsFunc(r.modules, func(other *module) bool { return other.path == need }) {
				return fmt.Errorf("%s needs %s, which is not released", m.path, need)
			}
		}
	}
	return nil
}

func ours(path string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func (r *release) modFile(dir string) (*modfile.File, error) {
	name := filepath.Join(r.tree, dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

// require makes a module require the others' version, without replacements, which go
// install refuses.
func (r *release) require(m *module) error {
	file, err := r.modFile(m.dir)
	if err != nil {
		return err
	}
	for _, need := range m.needs {
		if err := file.AddRequire(need, r.version); err != nil {
			return err
		}
	}
	for _, replaced := range slices.Clone(file.Replace) {
		if !ours(replaced.Old.Path) {
			return fmt.Errorf("%s replaces %s", m.path, replaced.Old.Path)
		}
		if err := file.DropReplace(replaced.Old.Path, replaced.Old.Version); err != nil {
			return err
		}
	}
	file.Cleanup()
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.tree, m.dir, "go.mod"), text, 0o644)
}

// download tags modules and lets the go command fetch them into a module cache, which is
// also the module proxy.
func (r *release) download(ctx context.Context, modules []*module, cache string) error {
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		if _, err := r.git(ctx, "tag", "--force", "--annotate", "--message", m.path+" "+r.version, m.tag(r.version)); err != nil {
			return err
		}
		args = append(args, m.path+"@"+r.version)
	}
	out, err := command(ctx, r.dir, []string{
		"GOWORK=off", "GOFLAGS=-modcacherw", "GOMODCACHE=" + cache, "GOPROXY=direct", "GONOSUMDB=" + prefix + "," + prefix + "/*",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + r.tree + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + prefix,
	}, "go", args...)
	if err != nil {
		return err
	}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var got struct{ Path, Version, Sum, GoModSum string }
		if err := d.Decode(&got); err != nil {
			return err
		}
		for _, m := range modules {
			if m.path == got.Path {
				m.zip = fmt.Sprintf("%s %s %s\n", got.Path, got.Version, got.Sum)
				m.modSum = fmt.Sprintf("%s %s/go.mod %s\n", got.Path, got.Version, got.GoModSum)
			}
		}
	}
	return nil
}

// addSums adds sums of modules to every go.sum that needs them, and amends the commit.
func (r *release) addSums(ctx context.Context, added []*module) error {
	for _, m := range r.modules {
		name := filepath.Join(r.tree, m.dir, "go.sum")
		var lines []string
		for _, a := range added {
			if slices.Contains(m.needs, a.path) {
				lines = append(lines, a.zip, a.modSum)
			}
		}
		if len(lines) == 0 {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		lines = append(lines, slices.Collect(strings.Lines(string(text)))...)
		slices.Sort(lines)
		if err := os.WriteFile(name, []byte(strings.Join(lines, "")), 0o644); err != nil {
			return err
		}
	}
	_, err := r.git(ctx, "commit", "--quiet", "--all", "--amend", "--allow-empty", "--no-edit")
	return err
}

func (r *release) changelog() error {
	text, err := os.ReadFile(filepath.Join(r.tree, "CHANGELOG.md"))
	if err == nil && r.version != dry && !strings.Contains(string(text), "\n## ["+strings.TrimPrefix(r.version, "v")+"]") {
		err = fmt.Errorf("CHANGELOG.md has no section for %s", r.version)
	}
	return err
}
