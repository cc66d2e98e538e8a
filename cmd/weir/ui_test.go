package main

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// weir ui prints a loopback address, admits whoever has the address, and ends with
// Ctrl-C.
func TestUI(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process there cannot be interrupted by another one")
	}
	dir := seed(t)
	cmd := command(t, dir, "ui", "--by", "ann")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	address, err := url.Parse(strings.TrimSpace(line))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", address.Hostname())
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	get := func(c *http.Client, address string) (int, string) {
		answer, err := c.Get(address)
		require.NoError(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(b)
	}
	site := "http://" + address.Host
	root := site + strings.TrimSuffix(address.Path, "/")
	require.Greater(t, len(root), len(site)+20, "the console is below a secret path")
	status, _ := get(browser, root+"/")
	assert.Equal(t, http.StatusForbidden, status, "without the code")
	status, _ = get(browser, site+"/?"+address.RawQuery)
	assert.Equal(t, http.StatusForbidden, status, "the code without the path")
	status, text := get(browser, address.String())
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, text, ">ann</p>")
	assert.NotContains(t, text, address.Query().Get("code"))
	other, err := url.Parse("http://127.0.0.1:1/")
	require.NoError(t, err)
	assert.Empty(t, jar.Cookies(other), "a server on another port gets no cookie")
	assert.NotEmpty(t, jar.Cookies(&url.URL{Scheme: "http", Host: address.Host, Path: address.Path}))
	status, text = get(browser, root+"/log")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, text, "The log is empty.")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address.String(), nil)
	require.NoError(t, err)
	r.Host = "evil.example:80"
	answer, err := browser.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, http.StatusForbidden, answer.StatusCode)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "it ends as it should")

	assert.Equal(t, 2, execute(t, command(t, dir, "ui", "--listen", "0.0.0.0:0")).status)
}
