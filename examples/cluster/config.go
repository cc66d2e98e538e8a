package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/weirflow/weir/progress"
)

type config struct {
	Orders   int64
	Duration time.Duration
	Seed     uint64
	Limit    time.Duration
	View     progress.Style
}

var errUsage = errors.New("wrong usage")

const usage = `Charge orders on a cluster of three JetStream servers and three workers, which are killed at random.

Usage: cluster [flags]

Servers and workers are processes on this machine, on the loopback interface, and end with this one. While orders arrive, servers and
workers are killed (SIGKILL) and started again. At the end the books of the payment providers are compared with the orders: each was
charged once, and the dead letters are exactly those that cannot be charged.

Exit status: 0 all is well, 1 an order was not charged once or the run failed, 2 wrong usage.

Flags:
`

func parse(args []string, out io.Writer) (c config, err error) {
	fs := flag.NewFlagSet("cluster", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var view string
	fs.Int64Var(&c.Orders, "orders", 1000, "`n` orders arrive, at least 1")
	fs.DurationVar(&c.Duration, "for", 25*time.Second, "the orders arrive, and servers and workers are killed, for this `duration`")
	fs.Uint64Var(&c.Seed, "seed", 1, "which orders, which of them cannot be charged, what is killed: `n`")
	fs.DurationVar(&c.Limit, "limit", 120*time.Second, "give up after this `duration`")
	fs.StringVar(&view, "view", string(progress.Auto), "`style` of the view on standard error: bar (redrawn), plain (lines), off, or auto (redrawn on a terminal)")
	err = fs.Parse(args)
	c.View = progress.Style(view)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(out, usage)
		fs.SetOutput(out)
		fs.PrintDefaults()
		return c, err
	case err != nil:
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.Orders < 1:
		err = fmt.Errorf("-orders %d: must be at least 1", c.Orders)
	case c.Duration < 0:
		err = fmt.Errorf("-for %v: must not be negative", c.Duration)
	case c.Limit <= 0:
		err = fmt.Errorf("-limit %v: must be positive", c.Limit)
	case !c.View.IsOne():
		err = fmt.Errorf("-view %s: must be auto, bar, plain or off", c.View)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w (-h for help)", errUsage, err)
	}
	return c, err
}
