package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
)

func TestJobsAndTheirLog(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	assert.Equal(t, result{"", "There are no jobs.\n", 0}, run("jobs", "list"))
	assert.Equal(t, result{"", "The log is empty.\n", 0}, run("log"))
	assert.Equal(t, result{"", "No worker is here.\n", 0}, run("workers"))

	assert.Equal(t, result{"Job 1 is started: weir jobs shows it\n", "", 0},
		run("dead", "merge", "--queue", "orders-dead", "--to", "orders", "--yes", "--provider", "north", "--detach", "--by", "ann", "--why", "the bank is back", "--rate", "50"))
	assert.Equal(t, result{"Job 1 is paused, 0 of 3 done\n", "", 0}, run("jobs", "pause", "1", "--by", "bob", "--why", "not yet"))
	assert.Regexp(t, `(?m)^a second +0.5$`, run("jobs", "rate", "1", "0.5", "--by", "bob", "--why", "slowly").stdout)
	assert.NotContains(t, run("jobs", "rate", "1", "0").stdout, "a second", "without a limit")
	for _, args := range [][]string{{"1"}, {"1", "fast"}, {"one", "5"}} {
		assert.Equal(t, exitUsage, run(append([]string{"jobs", "rate"}, args...)...).status, args)
	}
	assert.Equal(t, exitFailed, run("jobs", "rate", "1", "NaN").status)
	assert.Equal(t, result{"", "weir: job 1 is paused: weir jobs resume 1 resumes it\n", exitFailed}, run("jobs", "run", "1"))
	assert.Equal(t, result{"Job 1 is running, 0 of 3 done\n", "", 0}, run("jobs", "resume", "1"))
	assert.Equal(t, result{"3 messages sent back to \"orders\"\n", "", 0}, run("jobs", "run", "1"))
	assert.Equal(t, result{"", "weir: jobs: cancel: job 1 is over: it is done\n", exitFailed}, run("jobs", "cancel", "1"))
	assert.Equal(t, exitUsage, run("jobs", "show", "one").status)
	assert.Equal(t, result{"", "weir: jobs: there is no job 7\n", exitFailed}, run("jobs", "show", "7"))
	shown := run("jobs", "show", "1").stdout
	for _, line := range []string{`queue +orders-dead`, `to +orders`, `filter +\{"provider":"north"\}`, `by +ann`, `why +the bank is back`, `state +done`, `done +3 of 3`} {
		assert.Regexp(t, line, shown)
	}
	assert.Regexp(t, `JOB +BEGUN +DO +QUEUE +STATE +DONE +OF +BY +WHY *\n +1 .* merge +orders-dead +done +3 +3 +ann +the bank is back`, run("jobs", "list").stdout)
	assert.Empty(t, run("jobs", "list", "--open").stdout)

	log := run("log")
	assert.Zero(t, log.status)
	events := regexp.MustCompile(`(?m)Z +(\w+) `).FindAllStringSubmatch(log.stdout, -1)
	var names []string
	for _, e := range events {
		names = append(names, e[1])
	}
	assert.Equal(t, []string{"start", "pause", "rate", "rate", "resume", "end"}, names)
	var line struct{ By, Hash string }
	require.NoError(t, json.Unmarshal([]byte(strings.Split(run("log", "--json").stdout, "\n")[4]), &line))
	assert.Len(t, line.Hash, 64)
	assert.Regexp(t, `.+@.+`, line.By, "the default")

	// Simulate a change of the database by someone else.
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	_, err = db.Writer().ExecContext(t.Context(), "UPDATE weir_records SET value = replace(value, 'bob', 'eve') WHERE kind = 'log'")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	log = run("log")
	assert.Equal(t, exitFailed, log.status)
	assert.Contains(t, log.stderr, "line 2 of the log was changed")
}

// A job that the console has started without a count is counted when it runs.
func TestJobs_Uncounted(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	j, err := jobs.New(sqlite.New(db), jobs.Config{CountTime: 1})
	require.NoError(t, err)
	job, err := j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "orders-dead", By: "ann", Why: "test"})
	require.NoError(t, err)
	require.True(t, job.Uncounted)
	require.NoError(t, db.Close())
	assert.Equal(t, result{"Job 1 is paused, 0 done\n", "", 0}, run("jobs", "pause", "1"))
	assert.Regexp(t, `(?m)^done +0$`, run("jobs", "show", "1").stdout)
	assert.Regexp(t, `paused +0 +- +ann`, run("jobs", "list").stdout)
	assert.Zero(t, run("jobs", "resume", "1").status)
	assert.Zero(t, run("jobs", "run", "1").status)
	assert.Regexp(t, `(?m)^done +8 of 8$`, run("jobs", "show", "1").stdout)
}

// The way out of a lost end of the log, as the page dead-letters.md describes it: with all
// lines, and without.
func TestLog_HeadLost(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	merge := func() result {
		return run("dead", "merge", "--queue", "orders-dead", "--to", "orders", "--yes", "--max", "1", "--by", "ann", "--why", "one to try")
	}
	sql := func(statement string) {
		db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Writer().ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	require.Zero(t, merge().status)
	sql("DELETE FROM weir_records WHERE kind = 'log-head'")
	require.Contains(t, merge().stderr, "dead-letters.md")
	log := run("log", "--json")
	require.Equal(t, exitFailed, log.status)
	lines := strings.Split(strings.TrimSpace(log.stdout), "\n")
	require.Len(t, lines, 2)
	var last struct {
		N    int
		Hash string
	}
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &last))
	sql(fmt.Sprintf("INSERT INTO weir_records (kind, name, version, value) VALUES ('log-head', 'log', 1, '%d %s')", last.N, last.Hash))
	require.Equal(t, result{"1 message sent back to \"orders\"\n", "", 0}, merge())
	require.Zero(t, run("log").status)

	sql("DELETE FROM weir_records WHERE kind IN ('log-head', 'log')")
	require.Equal(t, exitFailed, merge().status)
	sql("DELETE FROM weir_records WHERE kind IN ('log', 'log-head', 'job', 'job-ended')")
	require.Equal(t, result{"1 message sent back to \"orders\"\n", "", 0}, merge())
	require.Zero(t, run("log").status)
}

func TestBackends(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	assert.Equal(t, result{"", "No worker has a backend.\n", 0}, run("backend", "list"))
	assert.Equal(t, exitUsage, run("backend", "hold").status)
	assert.Equal(t, exitUsage, run("backend", "limit", "pay", "many").status)
	assert.Equal(t, result{"Backend pay is held: 0 workers have it\n", "", 0}, run("backend", "hold", "pay", "--by", "ann", "--why", "they migrate"))
	assert.Regexp(t, `BACKEND +WORKER +SEEN +STATE +SINCE .*\npay +none +held .* they migrate \(ann\)`, run("backend", "list").stdout)
	assert.Equal(t, result{"pay\n", "", 0}, run("backend", "list", "-o", "name"))

	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer db.Close()
	j, err := jobs.New(sqlite.New(db), jobs.Config{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	heard, ended := make(chan jobs.BackendOrder, 10), make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		j.Work(ctx, func() jobs.Worker {
			return jobs.Worker{Backends: []jobs.Backend{{Name: "pay", State: "held", Why: "they migrate (ann)", Limit: 20, InUse: 3}}}
		}, func(o jobs.BackendOrder) { heard <- o })
	}()
	defer func() {
		stop()
		<-ended
	}()
	assert.Equal(t, "they migrate (ann)", (<-heard).Held, "also in a worker that starts later")
	for workers := 0; workers == 0; {
		all, err := j.Workers(t.Context())
		require.NoError(t, err)
		workers = len(all)
	}
	assert.Regexp(t, `pay +\w+ +\d+s +held .* 20 +3 +they migrate \(ann\)`, run("backend", "list").stdout)
	assert.Equal(t, result{"Backend pay is held, with a limit of 5 calls a worker: 1 worker has it\n", "", 0}, run("backend", "limit", "pay", "5"))
	assert.Equal(t, result{"Backend pay is not held, with a limit of 5 calls a worker: 1 worker has it\n", "", 0}, run("backend", "resume", "pay"))
	assert.Equal(t, result{"Backend pay is not held: 1 worker has it\n", "", 0}, run("backend", "limit", "pay", "none"))
	log := run("log").stdout
	for _, event := range []string{"hold +backend +pay +ann", "limit +backend +pay +5", "resume +backend +pay", "limit +backend +pay"} {
		assert.Regexp(t, event, log)
	}
	former := run("backend", "open", "pay")
	assert.Equal(t, "Backend pay is not held: 1 worker has it\n", former.stdout)
	assert.Equal(t, "weir backend open is called weir backend resume now; the next version of weir does not have the old name.\n", former.stderr)
	assert.Zero(t, former.status)
}

func TestHoldAndRelease(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	assert.Equal(t, exitUsage, run("hold", "--all", "--yes").status)
	assert.Equal(t, exitUsage, run("hold", "--queue", "orders-dead", "--yes").status)
	assert.Equal(t, result{"3 messages held\n", "", 0}, run("hold", "--queue", "orders-dead", "--provider", "north", "--yes"))
	assert.Regexp(t, `held +3\n`, run("dead", "count").stdout)
	assert.Regexp(t, `(?m)HELD\norders-dead .* 3$`, run("layers").stdout)
	assert.Contains(t, run("dead", "show", "orders/0/18").stdout, "held            until it is released")
	assert.Equal(t, result{`{"released":3}` + "\n", "", 0}, run("release", "--queue", "orders-dead", "--all", "--yes", "--json"))
	assert.Equal(t, result{"0 messages due\n", "", 0}, run("due", "--queue", "orders-retry-1", "--all", "--yes"), "they are due")
	assert.NotContains(t, run("layers").stdout, "HELD")
}

// A database of an earlier version lacks the table of jobs.
func TestJobsOnTablesOfAnEarlierVersion(t *testing.T) {
	dir := seed(t)
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	for _, statement := range []string{"DROP TABLE weir_records", "DELETE FROM weir_migrations WHERE component = 'sqlitestore' AND version >= 4"} {
		_, err = db.Writer().ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, db.Close())
	assert.Zero(t, execute(t, command(t, dir, "dead", "list")).status)
	r := execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--yes"))
	assert.Equal(t, exitFailed, r.status)
	assert.Contains(t, r.stderr, "the tables are of an earlier version of weir")
	assert.Equal(t, result{"8 messages removed\n", "", 0}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--yes", "--create")))
}

// A job of a process that has ended is listed unchanged, and its text is escaped.
func TestJobsEscape(t *testing.T) {
	dir := seed(t)
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	j, err := jobs.New(sqlite.New(db), jobs.Config{})
	require.NoError(t, err)
	_, err = j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "orders-dead", By: "ann\x1b[31m", Why: "one\ntwo"})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	for _, args := range []string{"jobs list", "jobs show 1", "log"} {
		r := execute(t, command(t, dir, strings.Fields(args)...))
		assert.Zero(t, r.status)
		assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", r.stdout+r.stderr, args)
		assert.Contains(t, r.stdout, `one\ntwo`)
	}
}

// A step that fails is repeated forever, and the waiting user sees the reason.
func TestJobs_StepThatFails(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	_, err = db.Writer().ExecContext(t.Context(), "CREATE TRIGGER t BEFORE DELETE ON weir_messages BEGIN DELETE FROM not_today; END")
	require.NoError(t, err)
	cmd := command(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--yes")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	assert.NoError(t, err)
	assert.Regexp(t, "^weir: a step failed, and is retried: .*not_today", line)
	_, err = db.Writer().ExecContext(t.Context(), "DROP TRIGGER t")
	assert.NoError(t, err)
	assert.NoError(t, cmd.Wait(), "it went on")
	require.NoError(t, db.Close())
	assert.Equal(t, result{"", "No message of queue \"orders-dead\" matches.\n", 0}, execute(t, command(t, dir, "dead", "list", "--queue", "orders-dead")))
}

func TestCancel_SkippedMessages(t *testing.T) {
	spec := jobs.Spec{Do: store.Purge, Family: true}
	for _, tt := range []struct {
		isJSON bool
		counts jobs.Progress
		want   string
	}{
		{false, jobs.Progress{Done: 3}, "3 messages removed\n"},
		{false, jobs.Progress{Done: 3, Skipped: 1}, "3 messages removed\n1 message skipped: settled before, or the engine refuses the change\n"},
		{true, jobs.Progress{Done: 3, Skipped: 1}, `{"purged":3,"skipped":1}` + "\n"},
	} {
		a := &app{json: tt.isJSON, frame: &strings.Builder{}}
		require.NoError(t, a.done(spec, tt.counts, nil))
		require.Equal(t, tt.want, a.frame.String())
	}
}

func TestQueue_PauseAndResume(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	assert.Equal(t, result{"", "No queue is paused.\n", 0}, run("queue", "list"))
	assert.Equal(t, exitUsage, run("queue", "pause").status)
	assert.Equal(t, result{"Queue orders is paused: 0 workers read it\n", "", 0}, run("queue", "pause", "orders", "--by", "ann", "--why", "they migrate"))
	assert.Regexp(t, `QUEUE +SINCE +BY +WHY *\norders +\S+ \S+ +ann +they migrate`, run("queue", "list").stdout)
	assert.Equal(t, result{"orders\n", "", 0}, run("queue", "list", "-o", "name"))
	assert.Regexp(t, `\{"queue":"orders","event":"pause","paused":true,"by":"ann","why":"they migrate","at":"[^"]+"\}`, run("queue", "list", "--json").stdout)
	layer := run("queue", "pause", "orders-retry-1")
	assert.Equal(t, exitFailed, layer.status)
	assert.Contains(t, layer.stderr, `queue "orders-retry-1" belongs to queue "orders"`)
	assert.Equal(t, result{"Queue orders is resumed: 0 workers read it\n", "", 0}, run("queue", "resume", "orders"))
	again := run("queue", "resume", "orders")
	assert.Equal(t, exitFailed, again.status)
	assert.Contains(t, again.stderr, `queue "orders" is not paused`)
	log := run("log").stdout
	for _, event := range []string{"pause +queue +orders +ann +they migrate", "resume +queue +orders"} {
		assert.Regexp(t, event, log)
	}
}

// The name of a queue without messages and workers may be mistyped: then the real queue
// would not be paused.
func TestQueue_PauseUnknownQueue(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	r := run("queue", "pause", "order")
	assert.Equal(t, exitFailed, r.status)
	assert.Empty(t, r.stdout)
	assert.Contains(t, r.stderr, `queue "order" has no messages and no workers: the queues are "orders-dead", "orders-retry-1", "orders-retry-2", `)
	assert.Contains(t, r.stderr, "--new pauses a queue")
	assert.Equal(t, result{"", "No queue is paused.\n", 0}, run("queue", "list"))
	assert.Equal(t, result{"Queue order is paused: 0 workers read it\n", "", 0}, run("queue", "pause", "order", "--new"))
	assert.Equal(t, result{"Queue order is resumed: 0 workers read it\n", "", 0}, run("queue", "resume", "order"), "a pause can always be ended")
}

// Names and reasons cannot send control characters to a terminal.
func TestQueue_ControlCharacters(t *testing.T) {
	dir := seed(t)
	bad := "x\x1b[31m\u202e\r\nqueue y is fine"
	for _, args := range [][]string{
		{"queue", "pause", "orders", "--by", bad, "--why", bad},
		{"queue", "list"},
		{"queue", "list", "--json"},
		{"log"},
		{"queue", "resume", "orders", "--json", "--by", bad, "--why", bad},
	} {
		r := execute(t, command(t, dir, args...))
		assert.Zero(t, r.status, args)
		for _, part := range []string{"\x1b", "\u202e", "\nqueue y"} {
			assert.NotContains(t, r.stdout+r.stderr, part, args)
		}
	}
}

func TestKey_HoldAndResume(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	assert.Equal(t, result{"", "No key is held.\n", 0}, run("key", "list"))
	assert.Equal(t, exitUsage, run("key", "hold", "orders").status)
	assert.Contains(t, run("key", "hold", "orders").stderr, "key hold needs a QUEUE and a KEY, and has 1 arguments")
	assert.Equal(t, result{"Key customer-1 of queue orders is held: 0 workers read it\n", "", 0}, run("key", "hold", "orders", "customer-1", "--by", "ann", "--why", "they migrate"))
	assert.Regexp(t, `QUEUE +KEY +SINCE +BY +WHY *\norders +customer-1 +\S+ \S+ +ann +they migrate`, run("key", "list").stdout)
	assert.Equal(t, result{"customer-1\n", "", 0}, run("key", "list", "-o", "name"))
	assert.Regexp(t, `\{"queue":"orders","key":"customer-1","event":"hold","held":true,"by":"ann","why":"they migrate","at":"[^"]+"\}`, run("key", "list", "--json").stdout)
	for _, refused := range []struct {
		args []string
		want string
	}{
		{[]string{"hold", "orders", "customer-1"}, `key "customer-1" of queue "orders" is held already, by ann since`},
		{[]string{"hold", "order", "customer-1"}, `queue "order" is unknown`},
		{[]string{"hold", "orders", ""}, `which key of queue "orders"?`},
		{[]string{"resume", "orders", "customer-2"}, `key "customer-2" of queue "orders" is not held`},
	} {
		r := run(append([]string{"key"}, refused.args...)...)
		assert.Equal(t, exitFailed, r.status)
		assert.Contains(t, r.stderr, refused.want)
	}
	assert.Equal(t, result{"Key customer-1 of queue orders is resumed: 0 workers read it\n", "", 0}, run("key", "resume", "orders", "customer-1"))
	log := run("log").stdout
	for _, event := range []string{"hold +key +orders: customer-1 +ann +they migrate", "resume +key +orders: customer-1"} {
		assert.Regexp(t, event, log)
	}
}

// Keys and reasons cannot send control characters to a terminal.
func TestKey_ControlCharacters(t *testing.T) {
	dir := seed(t)
	bad := "x\x1b[31m\u202e\r\nqueue y is fine"
	for _, args := range [][]string{
		{"key", "hold", "orders", bad, "--by", bad, "--why", bad},
		{"key", "list"},
		{"key", "list", "--json"},
		{"log"},
		{"key", "resume", "orders", bad},
	} {
		r := execute(t, command(t, dir, args...))
		assert.Zero(t, r.status, args)
		for _, part := range []string{"\x1b", "\u202e", "\nqueue y"} {
			assert.NotContains(t, r.stdout+r.stderr, part, args)
		}
	}
}

// The table by key has the keys that people hold, and the keys that are down, before the
// others.
func TestKeys_States(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	reading(t, dir, jobs.Worker{Reads: "orders", HoldsKeys: true, KeysDown: []jobs.KeyDown{
		{Key: "customer-2", State: "down", Why: "5 of 5 calls lost: 503\x1b[2J", Since: time.Now().Add(-90 * time.Second)},
	}})
	assert.Equal(t, result{"Key customer-9 of queue orders is held: 1 worker reads it\n", "", 0}, run("key", "hold", "orders", "customer-9", "--by", "ann", "--why", "they migrate"))
	assert.Regexp(t, `KEY +WAITING +OLDEST +NEXT +DEAD +STATE +SINCE +WHY *\n`+
		`customer-2 +0 +- +- +2 +down +1m\d+s +5 of 5 calls lost: 503\\x1b\[2J *\n`+
		`customer-9 +0 +- +- +0 +held +\d+s +they migrate \(ann\) *\n`+
		`customer-0 +0 +- +- +3 *\n`, run("keys", "orders").stdout)
	assert.Regexp(t, `\{"key":"customer-9",.*"hold":\{.*"by":"ann","why":"they migrate"`, run("keys", "orders", "--json").stdout)
	assert.Regexp(t, `\{"key":"customer-2",.*"down":\{"key":"customer-2","state":"down","why":"5 of 5 calls lost: 503.*"workers":1\}`, run("keys", "orders", "--json").stdout)
	assert.Regexp(t, `QUEUE +KEY +STATE +SINCE +WHY *\n`+
		`orders +customer-9 +held +\d+s +they migrate \(ann\) *\n`+
		`orders +customer-2 +down +1m\d+s +5 of 5 calls lost: 503\\x1b\[2J`, run("top").stdout)
}

// reading reports a worker on the database until the test ends.
func reading(t *testing.T, dir string, w jobs.Worker) {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	j, err := jobs.New(sqlite.New(db), jobs.Config{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		j.Work(ctx, func() jobs.Worker { return w }, nil)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, db.Close())
	})
	require.Eventually(t, func() bool {
		list, err := j.Workers(t.Context())
		return err == nil && len(list) == 1
	}, time.Minute, time.Millisecond)
}
