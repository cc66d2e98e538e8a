//go:build unix

package postgrestest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/stretchr/testify/require"
)

// initial has the files of a new database cluster. initdb takes about a second, so it
// runs once in a process.
var initial struct {
	mu    sync.Mutex
	files []clusterFile // in the order of their paths; guarded by mu
}

// clusterFile is a file or directory of a database cluster.
type clusterFile struct {
	path string // in the data directory
	mode fs.FileMode
	size int64
	text []byte // without the zeros at the end
}

// makeCluster makes the data directory, with a new database cluster.
func (s *Server) makeCluster() {
	s.t.Helper()
	initial.mu.Lock()
	defer initial.mu.Unlock()
	if initial.files != nil {
		for _, f := range initial.files {
			require.NoError(s.t, s.write(f))
		}
		return
	}
	out, err := s.command("initdb", "-D", s.data(), "-U", "weir", "-A", "trust", "-E", "UTF8", "--locale=C", "-N").CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	files, err := readCluster(s.data())
	require.NoError(s.t, err)
	initial.files = files
}

func readCluster(dir string) (files []clusterFile, err error) {
	err = filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := readFile(dir, name)
		files = append(files, f)
		return err
	})
	return files, err
}

func readFile(dir, name string) (clusterFile, error) {
	path, err := filepath.Rel(dir, name)
	if err != nil {
		return clusterFile{}, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return clusterFile{}, err
	}
	if info.IsDir() {
		return clusterFile{path: path, mode: info.Mode()}, nil
	}
	text, err := os.ReadFile(name)
	return clusterFile{path, info.Mode(), info.Size(), bytes.Clone(bytes.TrimRight(text, "\x00"))}, err
}

// write writes a file into the data directory of the server, for the server's user.
func (s *Server) write(f clusterFile) error {
	name := filepath.Join(s.data(), f.path)
	var err error
	if f.mode.IsDir() {
		err = os.Mkdir(name, f.mode.Perm())
	} else {
		err = errors.Join(os.WriteFile(name, f.text, f.mode.Perm()), os.Truncate(name, f.size))
	}
	if s.cred != nil {
		err = errors.Join(err, os.Chown(name, int(s.cred.Uid), int(s.cred.Gid)))
	}
	return err
}
