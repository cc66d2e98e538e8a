//go:build unix

package docs_test

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page contains the manifest that tools/release checks. Its program answers the
// probes and ends after SIGTERM.
func TestKubernetes(t *testing.T) {
	page, err := os.ReadFile("operate.md")
	require.NoError(t, err)
	manifest, err := os.ReadFile("programs/kubernetes/worker.yaml")
	require.NoError(t, err)
	require.Contains(t, string(page), "```yaml\n"+string(manifest)+"```")

	worker := exec.CommandContext(t.Context(), program(t, "kubernetes"), "-listen", "127.0.0.1:0")
	worker.Dir = t.TempDir()
	logged, err := worker.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, worker.Start())
	lines := bufio.NewScanner(logged)
	address := ""
	for address == "" && lines.Scan() {
		_, address, _ = strings.Cut(lines.Text(), "probes: ")
	}
	require.NotEmpty(t, address)
	for _, path := range []string{"/healthz", "/readyz"} {
		response, err := http.Get("http://" + address + path)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, path)
	}
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	for lines.Scan() { // until it has ended: Wait would close the pipe
	}
	require.NoError(t, worker.Wait())
}
