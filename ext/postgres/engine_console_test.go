//go:build unix

package postgres_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// The console on PostgreSQL, as weir ui serves it: its pages, a job, and with WEIR_LONG=1
// how long a page takes with a million dead letters. The console's own tests cover the
// rest.
func TestConsole(t *testing.T) {
	server := pgtest.Start(t)
	pool := connect(t, server.URL())
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	n := 2000
	if suite.Long() {
		n = 1_000_000
	}
	for i := 0; i < n; i += 1000 {
		ms := make([]store.Message, 1000)
		for k := range ms {
			ms[k] = store.Message{Cause: store.Exhausted, Payload: []byte("{}"), Meta: message.Meta{
				ID: fmt.Sprint("m", i+k), LastError: fmt.Sprintf("no answer of 10.0.0.%d", k%9), Provider: "bank", Reasons: []string{"UNAVAILABLE"},
			}}
		}
		require.NoError(t, s.Put(t.Context(), "orders-dead", ms...))
	}
	root, browser := startUI(t, server.URL())
	page := func(path string) string {
		t.Helper()
		answer, err := browser.Get(root + path)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode, "%s: %s", path, text)
		return string(text)
	}
	list, err := s.List(t.Context(), "orders-dead", store.Filter{IDs: []string{fmt.Sprint("m", n/2)}}, store.Page{Max: 1})
	require.NoError(t, err)
	var took []time.Duration
	for range 10 {
		for _, path := range []string{
			"/", "/layers", "/queue?queue=orders-dead", "/queue?queue=orders-dead&provider=bank", "/jobs", "/log", "/backends",
			fmt.Sprintf("/queue?queue=orders-dead&after=%d", list[0].Position), fmt.Sprintf("/message?queue=orders-dead&position=%d", list[0].Position),
		} {
			begun := time.Now()
			page(path)
			took = append(took, time.Since(begun))
		}
	}
	slices.Sort(took)
	p95 := took[len(took)*95/100]
	t.Logf("%d dead letters: a page takes %v, p95 %v", n, took[len(took)/2], p95)
	if suite.Long() {
		require.LessOrEqual(t, p95, 200*time.Millisecond)
	}

	form := url.Values{"do": {"merge"}, "queue": {"orders-dead"}, "to": {"orders"}, "new": {"yes"}, "max": {"3"}, "why": {"the bank is back"}}
	answer, err := browser.PostForm(root+"/start", form)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, root+"/job", "http://"+answer.Request.URL.Host+answer.Request.URL.Path)
	require.Eventually(t, func() bool { return strings.Contains(page("/job?id=1"), "done: 3 of 3 done") }, time.Minute, 50*time.Millisecond)
	require.Contains(t, page("/log"), "the bank is back")
}

// startUI starts weir ui, and returns its address and a browser that it lets in.
func startUI(t *testing.T, database string) (root string, browser *http.Client) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "weir")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, ".")
	build.Dir = "../../cmd/weir"
	built, err := build.CombinedOutput()
	require.NoError(t, err, "%s", built)
	cmd := exec.Command(binary, "ui", "--db", database)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	address := strings.TrimSpace(line)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser = &http.Client{Jar: jar}
	answer, err := browser.Get(address)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
	return strings.Split(address, "/?")[0], browser
}
