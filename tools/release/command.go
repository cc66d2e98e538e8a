package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// command runs a program with additional environment variables, and returns its output.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("in %s: %s %s: %w\n%s%s", dir, name, strings.Join(args, " "), err, &out, &errs)
	}
	return strings.TrimSpace(out.String()), nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	return command(ctx, r.tree, []string{
		"GIT_AUTHOR_NAME=weir", "GIT_AUTHOR_EMAIL=release@weirflow.invalid",
		"GIT_COMMITTER_NAME=weir", "GIT_COMMITTER_EMAIL=release@weirflow.invalid",
	}, "git", args...)
}
