// Command release makes a release of weir, without pushing it: a commit in which the
// modules require each other's new version, a tag for each module, a module proxy of
// files, programs that use it, the command weir for six platforms, an image, checksums
// and SBOMs. It works in a clone.
//
//	cd tools/release && export GOWORK=off
//	go run . -version v0.1.0 -out /tmp/weir  makes it, and prints the remaining steps
//	go run .                                 a dry run, as by .ci/run; removes everything
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/mod/semver"
)

const dry = "v0.0.1-dry"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.SetFlags(0)
	if err := run(ctx, os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		log.Fatal("release: ", err)
	}
}

type release struct {
	version string // with the prefix v
	dir     string // for all results
	root    string // the repository
	tree    string // its clone, with the commit of the release
	modules []*module
}

func run(ctx context.Context, args []string) error {
	var r release
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	fs.StringVar(&r.version, "version", dry, "the `version` of all modules")
	fs.StringVar(&r.dir, "out", "", "the `directory` to make; default: one that is removed at the end")
	fs.StringVar(&r.root, "repo", "../..", "the root of the `repository`, whose HEAD is released")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if semver.Canonical(r.version) != r.version {
		return fmt.Errorf("%q is no version, such as v0.1.0", r.version)
	}
	var err error
	r.root, err = filepath.Abs(r.root)
	if err != nil {
		return err
	}
	if r.dir == "" {
		r.dir, err = os.MkdirTemp("", "weir-release-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(r.dir) }()
	} else if r.dir, err = filepath.Abs(r.dir); err == nil {
		err = os.Mkdir(r.dir, 0o755) // fails if it exists
	}
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"the API beside that of the last release", r.compareAPI},
		{"the manifests for Kubernetes", r.checkManifests},
		{"a commit and tags", r.tag},
		{"programs in empty directories", r.tryModules},
		{"the command weir", r.buildCommands},
		{"an image", r.buildImage},
		{"checksums", r.sum},
	} {
		start := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		log.Printf("-- %s: %.1fs", step.name, time.Since(start).Seconds())
	}
	if r.version != dry {
		log.Printf("\nThe release is in %s. To publish it:\n\n\tgit -C %s push https://github.com/weirflow/weir --tags\n\n"+
			"Then upload the files of %s, and push the image to a registry.", r.dir, r.tree, filepath.Join(r.dir, "dist"))
	}
	return nil
}
