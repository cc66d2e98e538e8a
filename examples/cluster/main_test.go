package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/internal/testing/suite"
)

func TestMain(m *testing.M) {
	child()
	goleak.VerifyTestMain(m)
}

func execute(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	status = run(t.Context(), args, &out, &errOut)
	return status, out.String(), errOut.String()
}

// Servers and workers are killed, and each order is charged once.
func TestCluster_ChargedOnce(t *testing.T) {
	t.Parallel()
	length := "4s"
	if suite.Full() {
		length = "8s"
	}
	status, out, errOut := execute(t, "-orders", "300", "-for", length, "-view", "plain")
	require.Equal(t, show.ExitOK, status, out+errOut)
	assert.Contains(t, out, "proven: each of 294 orders was charged once; dead letters: 6, the poison.\n")
	assert.Regexp(t, `\n  kills of servers +[1-9]`, out+errOut)
	assert.Regexp(t, `\n  kills of workers +[1-9]`, out)
	assert.Regexp(t, `\n    wrong +0\n`, out)
	assert.Regexp(t, `server-[1-3] is killed`, errOut)
	assert.Regexp(t, `server-[1-3] is started again`, errOut)
	assert.Regexp(t, `of 300 orders: \d+ paid, \d+ dead, 0 to do`, errOut)
}

// The reconciliation sees each kind of error.
func TestReconcile(t *testing.T) {
	c := config{Orders: 100, Seed: 1}
	var good, poison bank.Order
	for _, o := range bank.Orders(c.Seed, c.Orders) {
		if isPoison(c.Seed, o) {
			poison = o
		} else {
			good = o
		}
	}
	require.NotZero(t, poison)
	for name, test := range map[string]struct {
		change func(o endState)
		want   string // "" if the books balance
	}{
		"all is well":   {func(endState) {}, ""},
		"charged twice": {func(o endState) { o.books[good.ID] = append(o.books[good.ID], bank.Booked{}) }, "2 charges in the books"},
		"not charged":   {func(o endState) { delete(o.books, good.ID) }, "0 charges in the books"},
		"paid twice":    {func(o endState) { o.payments[good.ID] = append(o.payments[good.ID], bank.Payment{}) }, "2 payments in their queue"},
		"paid twice, put twice": {func(o endState) {
			o.payments[good.ID] = append(o.payments[good.ID], o.payments[good.ID][0])
			o.repeats[good.ID] = 1
		}, ""},
		"paid thrice, put twice": {func(o endState) {
			o.payments[good.ID] = append(o.payments[good.ID], o.payments[good.ID][0], o.payments[good.ID][0])
			o.repeats[good.ID] = 1
		}, "3 payments in their queue"},
		"another charge, put twice": {func(o endState) {
			o.payments[good.ID] = append(o.payments[good.ID], bank.Payment{Order: good.ID, Charge: "x"})
			o.repeats[good.ID] = 1
		}, "the books have"},
		"lost, put twice": {func(o endState) {
			delete(o.payments, good.ID)
			o.repeats[good.ID] = 1
		}, "0 payments in their queue"},
		"lost":                {func(o endState) { delete(o.payments, good.ID) }, "0 payments in their queue"},
		"dead by mistake":     {func(o endState) { o.dead[good.ID] = make([]store.Entry, 1) }, "1 dead letters, although it can be charged"},
		"another charge":      {func(o endState) { o.payments[good.ID][0].Charge = "x" }, "the books have"},
		"another amount":      {func(o endState) { o.books[good.ID][0].Cents++ }, "the books have"},
		"poison charged":      {func(o endState) { o.books[poison.ID] = make([]bank.Booked, 1) }, "1 charges, although it cannot be charged"},
		"poison lost":         {func(o endState) { delete(o.dead, poison.ID) }, "0 dead letters"},
		"poison twice":        {func(o endState) { o.dead[poison.ID] = make([]store.Entry, 2) }, "2 dead letters"},
		"payment of no order": {func(o endState) { o.payments["x"] = nil }, "x is no order"},
		"dead, and no order":  {func(o endState) { o.dead["y"] = nil }, "y is no order"},
		"charge of no order":  {func(o endState) { o.books["z"] = nil }, "z is no order"},
	} {
		t.Run(name, func(t *testing.T) {
			o := endState{map[string][]bank.Payment{}, map[string][]store.Entry{}, map[string][]bank.Booked{}, map[string]int{}}
			for _, order := range bank.Orders(c.Seed, c.Orders) {
				if isPoison(c.Seed, order) {
					o.dead[order.ID] = make([]store.Entry, 1)
					continue
				}
				o.payments[order.ID] = []bank.Payment{{Order: order.ID, Charge: order.ID}}
				o.books[order.ID] = []bank.Booked{{Charge: order.ID, Cents: order.Cents}}
			}
			test.change(o)
			r := reconcile(c, o)
			var out bytes.Buffer
			if r.print(&out); test.want == "" {
				assert.Empty(t, r.wrong)
				assert.Contains(t, out.String(), "proven: each of")
				return
			}
			require.Len(t, r.wrong, 1)
			assert.Contains(t, r.wrong[0], test.want)
			assert.Contains(t, out.String(), "NOT proven")
			assert.Contains(t, out.String(), test.want)
		})
	}
}

// The numbers of a line add up in whatever order they were read.
func TestProgressAddsUp(t *testing.T) {
	for _, now := range []counts{{}, {waiting: 110, paid: 308, dead: 7}, {waiting: 3, paid: 390, dead: 8}} {
		s := &supervisor{config: config{Orders: 1000}, arrived: 388, now: now, begun: time.Now(), looked: time.Now()}
		var of, paid, dead, todo, all int64
		line := strings.TrimSpace(s.progress())
		_, line, _ = strings.Cut(line, "s  ")
		_, err := fmt.Sscanf(strings.ReplaceAll(line, ",", ""), "%d of %d orders: %d paid %d dead %d to do", &of, &all, &paid, &dead, &todo)
		require.NoError(t, err, line)
		require.Equal(t, of, paid+dead+todo, line)
		require.Equal(t, []int64{now.paid, now.dead}, []int64{paid, dead})
		require.GreaterOrEqual(t, of, s.arrived)
	}
}

// No line is wider than a terminal of 80 columns.
func TestPictureFits(t *testing.T) {
	s, err := newSupervisor(config{Orders: 1000, Seed: 1}, t.TempDir())
	require.NoError(t, err)
	defer s.js.Conn().Close()
	s.arrived, s.now, s.looked = 1000, counts{1000, 1000, 1000}, s.begun.Add(-time.Minute)
	for _, m := range s.members {
		m.state, m.leads = isUp, m.Role == roleServer
		s.note("%s is killed, which led the orders", m.Name)
	}
	picture := s.picture()
	assert.Contains(t, picture[0], ", no leader")
	require.Len(t, picture, 1+1+3+1+shownEvents)
	for _, line := range picture {
		assert.LessOrEqual(t, len(line), 80, line)
	}
	assert.Empty(t, s.news)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-orders", "0"}, {"-for", "-1s"}, {"-limit", "0s"}, {"-view", "loud"}, {"more"}, {"-nonsense"}} {
		status, out, errOut := execute(t, args...)
		assert.Equal(t, show.ExitUsage, status, args)
		assert.Empty(t, out)
		assert.Contains(t, errOut, "cluster: wrong usage: ")
	}
	var out bytes.Buffer
	_, err := parse([]string{"-h"}, &out)
	assert.ErrorIs(t, err, flag.ErrHelp)
	assert.Contains(t, out.String(), "Exit status")
}

// The run ends at its limit or at an interrupt, and reports which.
func TestEndsEarly(t *testing.T) {
	t.Parallel()
	status, out, errOut := execute(t, "-limit", "300ms", "-view", "off")
	assert.Equal(t, show.ExitFailed, status, out)
	assert.Contains(t, errOut, "cluster: not done after 300ms")

	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(4*time.Second, func() { cancel(errors.New("interrupted")) })
	var stdout, stderr bytes.Buffer
	assert.Equal(t, show.ExitFailed, run(ctx, []string{"-view", "off"}, &stdout, &stderr))
	assert.Equal(t, "cluster: interrupted\n", stderr.String())
}
