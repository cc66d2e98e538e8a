package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository is a git repository in a directory of its own.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs bash")
	}
	r := &repository{t, filepath.Join(t.TempDir(), "repository")}
	require.NoError(t, os.Mkdir(r.dir, 0o700))
	r.git("init", "-q", "-b", "main")
	return r
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// commit makes a commit without files and returns its hash.
func (r *repository) commit(subject string) string {
	r.t.Helper()
	r.git("commit", "-q", "--allow-empty", "-m", subject, "-m", "A body may have lines of any length: "+strings.Repeat("x", 80))
	return r.git("rev-parse", "HEAD")
}

// clone returns a clone with the last commits.
func (r *repository) clone(depth string) *repository {
	r.t.Helper()
	c := &repository{r.t, filepath.Join(r.t.TempDir(), "clone")}
	r.git("clone", "-q", "--depth", depth, "file://"+filepath.ToSlash(r.dir), c.dir)
	return c
}

// subjects runs the check, and returns its output and whether it passed.
func (r *repository) subjects(since string) (output string, ok bool) {
	r.t.Helper()
	script, err := filepath.Abs("../.ci/subjects")
	require.NoError(r.t, err)
	cmd := exec.Command("bash", script, since)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

var (
	longest = "core: " + strings.Repeat("ü", 66) // 72 characters
	tooLong = longest + "x"
)

func TestSubjects_AfterTheMarker(t *testing.T) {
	r := newRepository(t)
	r.commit(tooLong)
	since := r.commit(tooLong)
	r.commit(longest)
	out, ok := r.subjects(since)
	require.True(t, ok, out)
	require.Contains(t, out, "checked the subjects of 1 commits")

	r.commit(tooLong)
	r.commit(longest)
	out, ok = r.subjects(since)
	require.False(t, ok, out)
	require.Contains(t, out, "the subject has 73 characters, at most 72 are allowed: "+tooLong)
	require.Contains(t, out, "checked the subjects of 3 commits")
}

func TestSubjects_ShallowClone(t *testing.T) {
	r := newRepository(t)
	since := r.commit(tooLong)
	r.commit(longest)
	r.commit(tooLong)
	r.commit(longest)
	out, ok := r.clone("2").subjects(since) // the oldest commit of the clone is not checked
	require.True(t, ok, out)
	require.Contains(t, out, "shallow clone")
	require.Contains(t, out, "checked the subjects of 1 commits")

	out, ok = r.clone("3").subjects(since)
	require.False(t, ok, out)
	require.Contains(t, out, "shallow clone")
	require.Contains(t, out, "checked the subjects of 2 commits")

	out, ok = r.clone("4").subjects(since) // reaches back to the marker
	require.False(t, ok, out)
	require.NotContains(t, out, "shallow clone")
	require.Contains(t, out, "checked the subjects of 3 commits")
}

// A complete history without the marker must not pass silently.
func TestSubjects_MarkerMissing(t *testing.T) {
	r := newRepository(t)
	r.commit(longest)
	out, ok := r.subjects("0123456789012345678901234567890123456789")
	require.False(t, ok, out)
	require.Contains(t, out, "the history of HEAD is complete, but commit 0123456789012345678901234567890123456789 is not in it")
	require.Contains(t, out, ".ci/run")
}
