package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// proxy returns the environment of a user of the release. Tagged versions come from local
// files, other modules first from this machine's module cache.
func (r *release) proxy(ctx context.Context) ([]string, error) {
	out, err := command(ctx, r.dir, nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache, usual, _ := strings.Cut(out, "\n")
	url := "file://" + filepath.ToSlash(filepath.Join(r.dir, "proxy", "cache", "download"))
	return []string{
		"GOWORK=off", "GOFLAGS=-trimpath -modcacherw", "GOTOOLCHAIN=local", "GOMODCACHE=" + filepath.Join(r.dir, "modules"),
		"GOPROXY=" + url + ",file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + "," + usual, "GONOSUMDB=*",
	}, nil
}

// tryModules follows the README in an empty directory: go get, run the programs, and
// install the command. It also compiles all packages.
func (r *release) tryModules(ctx context.Context) error {
	env, err := r.proxy(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(r.dir, "try")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	goes := func(args ...string) error {
		_, err := command(ctx, dir, env, "go", args...)
		return err
	}
	get, all := []string{"get"}, []string{"build"}
	for _, m := range r.modules {
		if m.dir == "cmd/weir" {
			continue
		}
		get = append(get, m.path+"/...@"+r.version)
		all = append(all, m.path+"/...")
	}
	if err := errors.Join(goes("mod", "init", "example.com/try"), goes(get...), goes(all...)); err != nil {
		return err
	}
	for _, program := range []string{"stream", "worker"} {
		if err := r.tryProgram(ctx, env, dir, program); err != nil {
			return fmt.Errorf("docs/programs/%s: %w", program, err)
		}
	}
	bin := filepath.Join(r.dir, "bin")
	if _, err := command(ctx, dir, append(env, "GOBIN="+bin), "go", "install", prefix+"/cmd/weir@"+r.version); err != nil {
		return err
	}
	version, err := command(ctx, dir, nil, filepath.Join(bin, "weir"), "--version")
	if err == nil && version != "weir version "+r.version {
		err = fmt.Errorf("the command that was installed says %q", version)
	}
	return err
}

// tryProgram runs a program of the README until it has printed the README's output.
func (r *release) tryProgram(ctx context.Context, env []string, dir, name string) error {
	from := filepath.Join(r.tree, "docs", "programs", name)
	source, err := os.ReadFile(filepath.Join(from, "main.go"))
	if err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(from, "output.txt"))
	if err != nil {
		return err
	}
	args, _ := os.ReadFile(filepath.Join(from, "args.txt")) // missing without arguments
	if err := os.WriteFile(filepath.Join(dir, "main.go"), source, 0o644); err != nil {
		return err
	}
	if _, err := command(ctx, dir, env, "go", "build", "-o", "program", "."); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	program := exec.CommandContext(ctx, filepath.Join(dir, "program"), strings.Fields(string(args))...)
	program.Dir = dir
	var logged bytes.Buffer
	program.Stderr = &logged
	out, err := program.StdoutPipe()
	if err != nil {
		return err
	}
	if err := program.Start(); err != nil {
		return err
	}
	got := make([]byte, len(want))
	_, err = io.ReadFull(out, got)
	if bytes.Contains(source, []byte("signal.NotifyContext")) {
		_ = program.Process.Signal(os.Interrupt) // fails if it has ended
	}
	err = errors.Join(err, program.Wait())
	if err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("it printed %q, and not %q: %w\n%s", got, want, err, &logged)
	}
	return nil
}
