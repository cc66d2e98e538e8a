package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

const apiFile = "docs/reference/api.txt"

// compareAPI prints names that were added or removed since the last release. A patch
// version, and from 1.0 on also a minor version, must not remove names.
func (r *release) compareAPI(ctx context.Context) error {
	last, err := r.lastVersion(ctx)
	if err != nil {
		return err
	}
	if last == "" {
		log.Print("no release yet")
		return nil
	}
	before, err := command(ctx, r.root, nil, "git", "show", last+":"+apiFile)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(filepath.Join(r.root, apiFile))
	if err != nil {
		return err
	}
	gone, added := missing(before, string(now)), missing(string(now), before)
	for _, line := range gone {
		log.Print("- ", line)
	}
	for _, line := range added {
		log.Print("+ ", line)
	}
	log.Printf("since %s: %d lines are gone or changed, %d are new", last, len(gone), len(added))
	same := semver.MajorMinor(last) == semver.MajorMinor(r.version)
	if semver.Major(last) != "v0" {
		same = semver.Major(last) == semver.Major(r.version)
	}
	if len(gone) > 0 && same && r.version != dry {
		return fmt.Errorf("programs for %s need not compile with %s: it needs a higher number", last, r.version)
	}
	return nil
}

// lastVersion returns the core's highest tagged version, or "". It skips r.version and
// pre-releases.
func (r *release) lastVersion(ctx context.Context) (last string, err error) {
	tags, err := command(ctx, r.root, nil, "git", "tag", "--list", "v*")
	for tag := range strings.FieldsSeq(tags) {
		if semver.IsValid(tag) && semver.Prerelease(tag) == "" && semver.Compare(tag, last) > 0 && tag != r.version {
			last = tag
		}
	}
	return last, err
}

func missing(text, other string) (lines []string) {
	there := map[string]bool{}
	for line := range strings.Lines(other) {
		there[strings.TrimSpace(line)] = true
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !there[line] {
			lines = append(lines, line)
		}
	}
	return lines
}
