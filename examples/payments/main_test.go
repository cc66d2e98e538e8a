package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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

// The command proves itself: whatever is killed and lost, each order is charged once.
func TestChargedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"-orders", "120", "-kills", "2", "-dir", dir, "-progress", "plain"}
	status, out, errOut := execute(t, args...)
	require.Equal(t, exitOK, status, out+errOut)
	assert.Contains(t, out, "proven: of 120 orders each was charged once")
	assert.Regexp(t, `\n  kills of the job +2 `, out)
	assert.Regexp(t, `\n  kills of providers +4\n`, out)
	assert.Regexp(t, `in doubt: sent, no answer +[1-9]`, out)
	assert.Regexp(t, `declined by both +[1-9]`, out)
	assert.Regexp(t, `\n    wrong +0\n`, out)
	assert.Regexp(t, `\n  orders that were given up +[1-9][0-9]* +south was down for longer than the ladder lasts; then the dead letters were merged, and paid\n`, out)

	// A job that is done, started again, calls nothing and charges nothing.
	status, again, errOut := execute(t, "-orders", "120", "-kills", "0", "-dir", dir, "-progress", "off")
	require.Equal(t, exitOK, status, again+errOut)
	assert.Regexp(t, `\n  calls made +0\n`, again)
	assert.Empty(t, errOut)
}

// Without a protection the reconciliation finds orders that were charged twice.
func TestBroken(t *testing.T) {
	for _, protection := range []string{withoutTracking, withoutSticky} {
		t.Run(protection, func(t *testing.T) {
			t.Parallel()
			status, out, errOut := execute(t, "-orders", "80", "-kills", "1", "-progress", "off", "-break", protection)
			require.Equal(t, exitFailed, status, out+errOut)
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
	o := orderAt(1, 1)
	good := booked{Provider: north, Charge: "north-1", Cents: o.Cents}
	for name, test := range map[string]struct {
		payment  *booked
		charges  []booked
		hopeless bool
		want     string
	}{
		"charged":              {&good, []booked{good}, false, ""},
		"declined":             {&booked{Cents: o.Cents}, nil, true, ""},
		"not finished":         {nil, []booked{good}, false, "is not finished"},
		"twice":                {&good, []booked{good, good}, false, "was charged 2 times: north-1, north-1"},
		"not charged":          {&good, nil, false, "was not charged"},
		"another amount":       {&good, []booked{{north, "north-1", o.Cents + 1}}, false, "the books"},
		"another charge":       {&good, []booked{{north, "north-2", o.Cents}}, false, "the books"},
		"declined and charged": {&booked{Cents: o.Cents}, []booked{good}, true, "was declined, and charged"},
		"given up":             {&booked{Cents: o.Cents}, nil, false, "both providers decline it: false"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reconciliation{orders: 1, paid: map[string]int{}}
			payments := map[string]booked{}
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

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"-orders", "0"}, {"-kills", "-1"}, {"-break", "all"}, {"-limit", "0s"}, {"-progress", "loud"}, {"more"}, {"-nonsense"},
	} {
		status, out, errOut := execute(t, args...)
		assert.Equal(t, exitUsage, status, args)
		assert.Empty(t, out)
		assert.Contains(t, errOut, "payments: wrong usage: ")
	}
	var out bytes.Buffer
	_, err := parse([]string{"-h"}, &out)
	assert.ErrorIs(t, err, flag.ErrHelp)
	assert.Contains(t, out.String(), "Exit status")
}

// What does not end is ended, and says so.
func TestLimit(t *testing.T) {
	t.Parallel()
	status, out, errOut := execute(t, "-limit", "300ms", "-progress", "off")
	assert.Equal(t, exitFailed, status, out)
	assert.Contains(t, errOut, "payments: not done after 300ms")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	var stdout, stderr bytes.Buffer
	assert.Equal(t, exitFailed, run(ctx, []string{"-progress", "off"}, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "interrupted")
}
