package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/jobkill"
	"github.com/weirflow/weir/message"
)

// killed is the name of the children of TestHandler_KilledDuringAJob.
const killed = "console"

func TestMain(m *testing.M) {
	child.Run(killed, serve)
	m.Run()
	closeChromium()
}

// serve serves the console of a database, and prints its address.
func serve(path string) error {
	ctx := context.Background()
	e, err := sqlite.Open(ctx, path, sqlite.WithLogger(quiet))
	if err != nil {
		return err
	}
	h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet, Authorize: role(console.Actor, "ann")})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	return http.Serve(l, h) //nolint:gosec // of a test
}

// Laws J1, J2: a console that is killed at any step of a job, or while it begins one,
// neither loses nor doubles a message, and leaves one line in the log for a person's
// action. The next console continues when a person opens it who may act.
func TestHandler_KilledDuringAJob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queues.db")
	e, err := sqlite.Open(t.Context(), path, sqlite.WithLogger(quiet))
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	const n = 10_000
	jobkill.Put(t, e, n)
	require.NoError(t, e.Put(t.Context(), "dead", store.Message{Meta: message.Meta{ID: "other"}, Cause: store.Permanent}))
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	start := func() (p *child.Process, site string) {
		_, err := e.DB().Writer().ExecContext(t.Context(), "UPDATE weir_locks SET until = 0 WHERE name <> ''") // as if the leases of the killed had ended
		require.NoError(t, err)
		p, err = child.Start(killed, path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Kill() })
		site, err = p.Line(time.Minute)
		require.NoError(t, err)
		return p, strings.TrimSpace(site)
	}

	form := url.Values{"do": {"merge"}, "queue": {"dead"}, "cause": {"exhausted"}, "to": {"orders"}, "new": {"yes"}, "why": {"the bank is back"}}
	var job jobs.Job
	clicks := 0
	for ; job.ID == 0; clicks++ { // a person who gets no answer clicks again
		p, site := start()
		clicked := make(chan error, 1)
		go func() { // ends with the process
			answer, err := http.PostForm(site+"/start", form)
			if err == nil {
				err = answer.Body.Close()
			}
			clicked <- err
		}()
		time.Sleep(rand.N(time.Duration(clicks+1) * 5 * time.Millisecond)) // at a random step of its beginning
		require.NoError(t, p.Kill())
		<-clicked //nolint:errcheck // it got an answer, or not
		list, err := j.List(t.Context())
		require.NoError(t, err)
		if len(list) > 0 {
			job = list[0]
		}
	}
	t.Logf("the job was begun by click %d", clicks)

	job, _ = jobkill.Kill(t, e, job, 8, func(jobs.Job) *child.Process {
		p, site := start()
		answer, err := http.Get(site)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return p
	})
	jobkill.Check(t, e, n, job)
	left, err := e.Count(t.Context(), "dead", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 1, left.Messages, "what the filter does not match stays")
}
