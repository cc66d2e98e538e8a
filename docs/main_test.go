package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// A cache of otter cannot be closed.
		goleak.IgnoreAnyFunction("github.com/maypok86/otter/v2.periodicCleanUp[...]"),
		goleak.Cleanup(func(status int) {
			_ = os.RemoveAll(programDir)
			os.Exit(status)
		}))
}

// programDir has the built programs of the pages. It is "" until buildPrograms has run.
var programDir string

var buildPrograms = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "weir-programs-")
	if err != nil {
		return err
	}
	programDir = dir
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", programDir+string(filepath.Separator), "./programs/...")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
})

// program returns the path of a program of the pages. The first call builds all of them.
func program(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, buildPrograms())
	return filepath.Join(programDir, name)
}
