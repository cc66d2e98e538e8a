package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/internal/testing/suite"
)

func TestMain(m *testing.M) {
	child()
	suite.SetParallel(4, 2)
	goleak.VerifyTestMain(m)
}

func execute(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	status = run(t.Context(), args, &out, &errOut)
	return status, out.String(), errOut.String()
}

// On each engine each order is charged once, despite kills and lost answers.
func TestPayments_ChargedOnce(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{onSQLite, onEmbedded, onKafka} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			args := []string{"-engine", engine, "-orders", "100", "-kills", "2", "-dir", dir, "-progress", "plain"}
			status, out, errOut := execute(t, args...)
			require.Equal(t, show.ExitOK, status, out+errOut)
			assert.Contains(t, out, "proven: each of 100 orders was charged once")
			assert.Regexp(t, `\n  kills of workers +2 `, out)
			assert.Regexp(t, `\n  kills of providers +4\n`, out)
			assert.Regexp(t, `in doubt: sent, no answer +[1-9]`, out)
			assert.Regexp(t, `declined by both +[1-9]`, out)
			assert.Regexp(t, `\n    wrong +0\n`, out)
			assert.Regexp(t, `\n  outages of backends +[1-9]`, out, "the outage of south")
			declined := regexp.MustCompile(`declined by both +(\d+)   these are the dead letters: (\d+)`).FindStringSubmatch(out)
			require.Len(t, declined, 3, out)
			assert.Equal(t, declined[1], declined[2], "the outage has made dead letters") // the reconciliation compares them one by one
			if engine == onKafka {
				assert.Contains(t, out, "on kfake, a TEST DOUBLE of Kafka")
			}

			if engine != onSQLite {
				return
			}
			// A finished job that is started again makes no calls and no charges.
			status, again, errOut := execute(t, "-engine", engine, "-orders", "100", "-kills", "0", "-dir", dir, "-progress", "off")
			require.Equal(t, show.ExitOK, status, again+errOut)
			assert.Regexp(t, `\n  calls made +0\n`, again)
			assert.Empty(t, errOut)
		})
	}
}

// On a JetStream server elsewhere, the run removes its data at the end.
func TestPayments_OnAServer(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(t.TempDir(), embedded.Config{Logger: quiet, Options: func(o *server.Options) {
		o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
	}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	status, out, errOut := execute(t, "-engine", s.URL(), "-orders", "40", "-kills", "1", "-outage=false", "-progress", "off")
	require.Equal(t, show.ExitOK, status, out+errOut)
	assert.Contains(t, out, "proven: each of 40 orders")
	assert.Contains(t, out, "on JetStream at "+s.URL())

	engine, err := jetstream.Open(t.Context(), s.URL())
	require.NoError(t, err)
	defer engine.Close()
	left, err := engine.Queues(t.Context())
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Without a server the command reports an error.
func TestPayments_NoServer(t *testing.T) {
	status, _, errOut := execute(t, "-engine", "nats://127.0.0.1:1", "-limit", "500ms", "-progress", "off")
	assert.Equal(t, show.ExitFailed, status)
	assert.Contains(t, errOut, "payments: -engine nats://127.0.0.1:1: ")
	status, _, errOut = execute(t, "-engine", "kafka://127.0.0.1:1", "-limit", "500ms", "-progress", "off")
	assert.Equal(t, show.ExitFailed, status)
	assert.Contains(t, errOut, "payments: -engine kafka://127.0.0.1:1: ")
}

// An engine that fails to answer for a while, for example while a broker restarts, does
// not end the run.
func TestPayments_Patience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away, tries := errors.New("not the leader"), 0
		n, err := patiently(t.Context(), func(context.Context) (int, error) {
			if tries++; tries < 100 {
				return 0, away
			}
			return 7, nil
		})
		require.NoError(t, err)
		require.Equal(t, 7, n)
		_, err = patiently(t.Context(), func(context.Context) (int, error) { return 0, away })
		require.ErrorIs(t, err, away)
	})
}

// Without a protection the reconciliation finds orders that were charged twice. An order
// can be charged twice if its answer is lost while both providers are up. So there are
// many orders, and no outage.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, protection := range []string{withoutTracking, withoutSticky} {
		t.Run(protection, func(t *testing.T) {
			t.Parallel()
			status, out, errOut := execute(t, "-orders", "150", "-kills", "1", "-outage=false", "-progress", "off", "-break", protection)
			require.Equal(t, show.ExitFailed, status, out+errOut)
			assert.Contains(t, out, "NOT proven")
			assert.Regexp(t, `order-\d+ was charged [2-9] times: (north|south)-\d+, (north|south)-\d+`, out)
			if protection == withoutSticky {
				assert.Regexp(t, `was charged 2 times: north-\d+, south-\d+\n`, out)
			}
		})
	}
}

// The reconciliation sees each kind of error.
func TestReconcile(t *testing.T) {
	o := bank.OrderAt(1, 1)
	good := bank.Booked{Provider: bank.North, Charge: "north-1", Cents: o.Cents}
	for name, test := range map[string]struct {
		payment  *bank.Booked
		charges  []bank.Booked
		hopeless bool
		want     string
	}{
		"charged":              {&good, []bank.Booked{good}, false, ""},
		"declined":             {&bank.Booked{Cents: o.Cents}, nil, true, ""},
		"not finished":         {nil, []bank.Booked{good}, false, "is not finished"},
		"twice":                {&good, []bank.Booked{good, good}, false, "was charged 2 times: north-1, north-1"},
		"not charged":          {&good, nil, false, "was not charged"},
		"another amount":       {&good, []bank.Booked{{Provider: bank.North, Charge: "north-1", Cents: o.Cents + 1}}, false, "the books"},
		"another charge":       {&good, []bank.Booked{{Provider: bank.North, Charge: "north-2", Cents: o.Cents}}, false, "the books"},
		"declined and charged": {&bank.Booked{Cents: o.Cents}, []bank.Booked{good}, true, "was declined, and charged"},
		"given up":             {&bank.Booked{Cents: o.Cents}, nil, false, "both providers decline it: false"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reconciliation{orders: 1, paid: map[string]int{}}
			payments := map[string]bank.Booked{}
			if test.payment != nil {
				payments[o.ID] = *test.payment
			}
			r.order(o, payments, test.charges, test.hopeless)
			var out bytes.Buffer
			assert.Equal(t, test.want == "", r.print(&out))
			assert.Contains(t, out.String(), test.want)
		})
	}
}

// The payments that came out must equal the job's payments.
func TestReconcileReceipts(t *testing.T) {
	good := bank.Payment{Order: "order-0001", Provider: bank.North, Charge: "north-1"}
	payments := map[string]bank.Booked{good.Order: {Provider: bank.North, Charge: "north-1", Cents: 100}}
	for name, test := range map[string]struct {
		receipts []bank.Payment
		again    bool
		want     string
	}{
		"once":           {[]bank.Payment{good}, false, ""},
		"twice":          {[]bank.Payment{good, good}, false, "order-0001 came out more than once"},
		"twice on Kafka": {[]bank.Payment{good, good}, true, ""},
		"missing":        {nil, true, "order-0001 has a payment that did not come out"},
		"another":        {[]bank.Payment{{Order: good.Order, Provider: bank.South, Charge: "south-1"}}, false, "what came out south-1"},
		"of no order":    {[]bank.Payment{good, {Order: "order-0002"}}, false, "order-0002 has no payment"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reconciliation{}
			r.compare(test.receipts, payments, test.again)
			if test.want == "" {
				assert.Empty(t, r.wrong)
				return
			}
			require.Len(t, r.wrong, 1)
			assert.Contains(t, r.wrong[0], test.want)
		})
	}
}

// The dead letters must be the orders that both providers have declined.
func TestReconcileDeadLetters(t *testing.T) {
	declined, paid := bank.Order{ID: "order-0001"}, bank.Order{ID: "order-0002"}
	payments := map[string]bank.Booked{declined.ID: {}, paid.ID: {Provider: bank.North, Charge: "north-1"}}
	for name, test := range map[string]struct {
		dead  []bank.Order
		again int
		want  string
	}{
		"declined":    {[]bank.Order{declined}, 0, ""},
		"twice":       {[]bank.Order{declined, declined}, 1, ""},
		"missing":     {nil, 0, "order-0001 was declined by both, and is no dead letter"},
		"paid":        {[]bank.Order{declined, paid}, 0, "order-0002 is a dead letter, and was not declined by both"},
		"of no order": {[]bank.Order{declined, {ID: "order-0003"}}, 0, "order-0003 is a dead letter, and was not declined by both"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reconciliation{}
			r.bury(test.dead, payments)
			if test.want == "" {
				assert.Empty(t, r.wrong)
				assert.Equal(t, 1, r.dead)
				assert.Equal(t, test.again, r.deadAgain)
				return
			}
			require.Len(t, r.wrong, 1)
			assert.Equal(t, test.want, r.wrong[0])
		})
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"-orders", "0"}, {"-kills", "-1"}, {"-break", "all"}, {"-limit", "0s"}, {"-engine", "oracle"}, {"-engine", "nats"}, {"-engine", "postgres"}, {"-engine", "mysql://x/y"}, {"-workers", "0"}, {"-progress", "loud"}, {"more"}, {"-nonsense"},
	} {
		status, out, errOut := execute(t, args...)
		assert.Equal(t, show.ExitUsage, status, args)
		assert.Empty(t, out)
		assert.Contains(t, errOut, "payments: wrong usage: ")
	}
	var out bytes.Buffer
	_, err := parse([]string{"-h"}, &out)
	assert.ErrorIs(t, err, flag.ErrHelp)
	assert.Contains(t, out.String(), "Exit status")
}

// A run that does not end by itself is ended and reports the reason.
func TestLimit(t *testing.T) {
	t.Parallel()
	status, out, errOut := execute(t, "-limit", "300ms", "-progress", "off")
	assert.Equal(t, show.ExitFailed, status, out)
	assert.Contains(t, errOut, "payments: not done after 300ms")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	var stdout, stderr bytes.Buffer
	assert.Equal(t, show.ExitFailed, run(ctx, []string{"-progress", "off"}, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "interrupted")
}

// The console shows the run and is served until Ctrl-C.
func TestConsole(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write := io.Pipe()
	ended := make(chan int, 1)
	go func() { // ends with the run
		ended <- run(ctx, []string{"-orders", "20", "-kills", "0", "-outage=false", "-progress", "off", "-ui"}, io.Discard, write)
		_ = write.Close()
	}()
	lines := bufio.NewScanner(read)
	require.True(t, lines.Scan())
	address, ok := strings.CutPrefix(lines.Text(), "The console: ")
	require.True(t, ok, lines.Text())
	require.True(t, lines.Scan())
	require.Equal(t, "The console is there until Ctrl-C.", lines.Text())
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Get(address)
	require.NoError(t, err)
	page, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Contains(t, string(page), "payments")
	cancel()
	require.Equal(t, show.ExitOK, <-ended)
	require.False(t, lines.Scan())
}
