package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var platforms = []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64", "windows/amd64", "windows/arm64"}

type file struct {
	name string
	mode int64
	text []byte
}

func (r *release) dist(name string) string { return filepath.Join(r.dir, "dist", name) }

// buildCommands builds the command weir from its tag for all platforms, as archives with
// licenses and an SBOM each. The go command stamps the version.
func (r *release) buildCommands(ctx context.Context) error {
	env, err := r.proxy(ctx)
	if err != nil {
		return err
	}
	if err := os.Mkdir(r.dist(""), 0o755); err != nil {
		return err
	}
	for _, platform := range platforms {
		system, machine, _ := strings.Cut(platform, "/")
		binary := r.binary(platform)
		if _, err := command(ctx, filepath.Join(r.tree, "cmd", "weir"), append(env, "GOFLAGS=-trimpath -modcacherw -buildvcs=true", "CGO_ENABLED=0",
			"GOOS="+system, "GOARCH="+machine), "go", "build", "-ldflags=-s -w", "-o", binary, "."); err != nil {
			return err
		}
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return err
		}
		if info.Main.Version != r.version {
			return fmt.Errorf("%s has the version %q", binary, info.Main.Version)
		}
		name := fmt.Sprintf("weir_%s_%s_%s", strings.TrimPrefix(r.version, "v"), system, machine)
		if err := r.archive(ctx, env, name, binary, info); err != nil {
			return err
		}
		if err := r.writeSBOM(r.dist(name+".cdx.json"), info); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) binary(platform string) string {
	name := "weir"
	if strings.HasPrefix(platform, "windows/") {
		name += ".exe"
	}
	return filepath.Join(r.dir, "build", filepath.FromSlash(platform), name)
}

// archive writes a zip for Windows and a gzipped tar for other platforms.
func (r *release) archive(ctx context.Context, env []string, name, binary string, info *buildinfo.BuildInfo) error {
	var files []file
	for _, from := range []string{filepath.Join(r.tree, "LICENSE"), filepath.Join(r.tree, "NOTICE"), binary} {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if from == binary {
			mode = 0o755
		}
		files = append(files, file{filepath.Base(from), mode, text})
	}
	licenses, err := r.licenses(ctx, env, info)
	if err != nil {
		return err
	}
	files = append(files, file{"LICENSES-OF-OTHERS", 0o644, licenses})
	at, err := r.commitTime(ctx)
	if err != nil {
		return err
	}
	if strings.HasSuffix(binary, ".exe") {
		return writeZip(r.dist(name+".zip"), files, at)
	}
	return writeTar(r.dist(name+".tar.gz"), files, at)
}

// licenses returns the licenses of a binary's modules, which require that copies include
// them.
func (r *release) licenses(ctx context.Context, env []string, info *buildinfo.BuildInfo) ([]byte, error) {
	args := []string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}"}
	for _, dep := range info.Deps {
		if !ours(dep.Path) {
			args = append(args, dep.Path)
		}
	}
	out, err := command(ctx, filepath.Join(r.tree, "cmd", "weir"), env, "go", args...)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for line := range strings.Lines(out) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		var found []string
		for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*", "NOTICE*"} {
			names, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, err
			}
			found = append(found, names...)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no license", path)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "==== %s: %s\n\n%s\n", path, filepath.Base(name), text)
		}
	}
	return b.Bytes(), nil
}

func (r *release) commitTime(ctx context.Context) (time.Time, error) {
	text, err := r.git(ctx, "log", "-1", "--format=%cI")
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339, text)
}

func writeTar(name string, files []file, at time.Time) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: at}); err != nil {
			return err
		}
		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

func writeZip(name string, files []file, at time.Time) error {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		part, err := w.CreateHeader(&zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at})
		if err != nil {
			return err
		}
		if _, err := part.Write(f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

func (r *release) sum(context.Context) error {
	entries, err := os.ReadDir(r.dist(""))
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		text, err := os.ReadFile(r.dist(e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(text), e.Name()))
	}
	slices.Sort(lines)
	return os.WriteFile(r.dist("SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
