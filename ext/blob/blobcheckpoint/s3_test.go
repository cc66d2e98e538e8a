//go:build unix

package blobcheckpoint_test

import (
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/s3blob" // the scheme s3

	"github.com/weirflow/weir/internal/testing/suite"
)

// startS3 starts an S3 server on loopback, which ends with the test, and returns the URL
// of an empty bucket.
//
// The server is versitygw, above a directory. It honours If-None-Match, but checks and
// writes in two steps, so the tests here do not let two stores write at the same time.
func startS3(t *testing.T) string {
	t.Helper()
	if os.Getenv("CI") == "" && os.Getenv("WEIR_REQUIRE_S3") == "" {
		t.Skip("set WEIR_REQUIRE_S3=1 to test with an S3 server: it is built by go tool, once, in about a minute")
	}
	build := exec.CommandContext(t.Context(), "go", "tool", "-n", "versitygw")
	build.Dir = "../../../tools/s3"
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	build.Stderr = os.Stderr
	path, err := build.Output()
	require.NoError(t, err)

	dir := t.TempDir()
	for _, sub := range []string{"data/bucket", "meta"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o700))
	}
	// Below the ports that connections get, so that it stays free until the server has
	// it.
	address := "127.0.0.1:" + strconv.Itoa(12_000+rand.IntN(20_000))
	l, err := net.Listen("tcp", address)
	for try := 0; err != nil && try < 100; try++ {
		address = "127.0.0.1:" + strconv.Itoa(12_000+rand.IntN(20_000))
		l, err = net.Listen("tcp", address)
	}
	require.NoError(t, err)
	require.NoError(t, l.Close())
	server := exec.CommandContext(t.Context(), strings.TrimSpace(string(path)), "--port", address, "--health", "/health", "--quiet",
		"posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	server.Env = append(os.Environ(), "ROOT_ACCESS_KEY=weir", "ROOT_SECRET_KEY=weirweir")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	require.NoError(t, server.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Wait() // by a signal
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill() // it may have ended by itself
		<-ended
		if t.Failed() {
			t.Logf("versitygw: %s", log.String())
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(t, func() bool {
		resp, err := client.Get("http://" + address + "/health")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "%s does not answer", path)

	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "weir", "AWS_SECRET_ACCESS_KEY": "weirweir", "AWS_REGION": "us-east-1",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	return "s3://bucket?use_path_style=true&endpoint=http://" + address
}

// TestS3 runs the tests of this package with an S3 server.
func TestS3(t *testing.T) {
	url := startS3(t)
	open := func(t *testing.T) *blob.Bucket {
		t.Helper()
		b, err := blob.OpenBucket(t.Context(), url)
		require.NoError(t, err)
		require.NoError(t, eachObject(b, func(key string, _ []byte) error { return b.Delete(background, key) }))
		return b
	}
	t.Run("epochs", func(t *testing.T) { testEpochs(t, open) })
	if !suite.Race { // the suite has one goroutine, and many writes
		t.Run("store", func(t *testing.T) { testStore(t, open) })
	}
}
