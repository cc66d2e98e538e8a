package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

const (
	deadFile   = "dead.jsonl"
	replayFile = "replay.jsonl"
	deadQueue  = "dead"
)

// directory holds the dead letters that package deadfile stored. It is read without its
// lock, so the program may be running. It is never changed.
type directory struct {
	path string
	read *memory.Engine // content of the file
}

// openDirectory reads the dead letters of a directory. It calls note with remarks for the
// user.
func openDirectory(ctx context.Context, path string, c clock.Clock, note func(format string, args ...any)) (*database, error) {
	path, err := url.PathUnescape(path)
	if err != nil {
		return nil, usagef("the URL of the directory: %v", err)
	}
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is a file, and not a directory of dead letters; a database is sqlite:%s", path, path)
	}
	_, err = os.Stat(filepath.Join(path, replayFile))
	replayed := err == nil
	file, err := os.Open(filepath.Join(path, deadFile))
	switch {
	case err == nil:
		defer file.Close() //nolint:errcheck // opened only to read
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case !replayed:
		return nil, fmt.Errorf("%s is not a directory of dead letters: it lacks %s", path, deadFile)
	}
	d := &directory{path: path}
	var r io.Reader = file
	if file == nil {
		r = bytes.NewReader(nil)
	}
	if d.read, err = readDirectory(ctx, r, c, note); err != nil {
		return nil, err
	}
	if replayed {
		note("A replay has taken dead letters, which are in %s until they are done.", filepath.Join(path, replayFile))
	}
	return &database{store: d, closers: []func() error{d.read.Close}}, nil
}

// readDirectory reads the lines of a file. It ignores a last line without a line end,
// because that line is still being written.
func readDirectory(ctx context.Context, r io.Reader, c clock.Clock, note func(format string, args ...any)) (*memory.Engine, error) {
	now := clock.NewMock() // the last failure counts as the arrival of a dead letter
	s := memory.Open(memory.WithClock(now))
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			now.Set(c.Now())
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		var m store.Message
		if err := json.Unmarshal(line, &m); err != nil {
			note("line %d of %s cannot be read: %v", n, deadFile, err)
			continue
		}
		if m.Meta.LastFailure.After(now.Now()) {
			now.Set(m.Meta.LastFailure)
		}
		if err := s.Put(ctx, deadQueue, m); err != nil {
			note("line %d of %s cannot be read: %v", n, deadFile, err)
		}
	}
}

func (d *directory) cannot(what, instead string) error {
	return fmt.Errorf("%s is a directory of dead letters, which lacks %s: %s", d.path, what, instead)
}

func (d *directory) check(queue string) error {
	if queue != deadQueue {
		return d.cannot(fmt.Sprintf("queue %q", queue), "its only one is \""+deadQueue+"\"")
	}
	return nil
}

func (d *directory) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if err := d.check(queue); err != nil {
		return nil, err
	}
	return d.read.List(ctx, queue, f, p)
}

func (d *directory) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	if err := d.check(queue); err != nil {
		return store.Counts{}, err
	}
	return d.read.Count(ctx, queue, f)
}

func (d *directory) Queues(context.Context) ([]string, error) { return []string{deadQueue}, nil }

func (d *directory) Put(context.Context, string, ...store.Message) error {
	return d.cannot("import", "its program writes it")
}

func (d *directory) matching(_ context.Context, s jobs.Spec) (int, error) {
	switch s.Do {
	case store.Purge:
		return 0, d.cannot("purge", "stop its program and delete "+deadFile+", or import that into a store and purge there")
	case store.Merge:
		return 0, d.cannot("merge", "its program replays it (deadfile.File.Replay), or import "+deadFile+" into a store and merge there")
	case store.Hold, store.Release, store.Due:
	}
	return 0, d.cannot(string(s.Do), "no worker reads it")
}

func (d *directory) do(ctx context.Context, s jobs.Spec, _ bool, _ func(jobs.Progress)) (jobs.Job, error) {
	_, err := d.matching(ctx, s)
	return jobs.Job{}, err
}

func (d *directory) empty(context.Context, string) (bool, error) { return false, nil }
