package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// config is what the flags say.
type config struct {
	Orders   int64
	Seed     uint64
	Kills    int
	Outage   bool
	Break    string
	Dir      string
	Limit    time.Duration
	Progress string
}

// Protections that -break leaves out.
const (
	withoutTracking = "tracking"
	withoutSticky   = "sticky"
)

var errUsage = errors.New("wrong usage")

const usage = `Charge orders through two payment providers that lose answers, refuse, time out and die.

Usage: payments [flags]

The providers and the job that calls them are processes on this machine, and all of them are killed (SIGKILL) again and again. At the
end the books of the providers are compared with those of the job: each order was charged once, or declined by both.

Exit status: 0 all is well, 1 an order was not charged once or the run failed, 2 wrong usage.

Flags:
`

func parse(args []string, out io.Writer) (c config, err error) {
	fs := flag.NewFlagSet("payments", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Int64Var(&c.Orders, "orders", 400, "length of the stream: `n`, at least 1")
	fs.Uint64Var(&c.Seed, "seed", 1, "which orders, which of them are declined, which trouble: `n`")
	fs.IntVar(&c.Kills, "kills", 5, "kill the job and each provider `n` times")
	fs.BoolVar(&c.Outage, "outage", true, "one provider is down for longer than the ladder lasts; when it is back, the dead letters are merged")
	fs.StringVar(&c.Break, "break", "", "leave out a `protection`, to see what it is for: tracking (requests have no ids) or sticky (after an error the other provider is asked)")
	fs.StringVar(&c.Dir, "dir", "", "keep the databases in this `directory`, and go on there (default: a temporary one)")
	fs.DurationVar(&c.Limit, "limit", 55*time.Second, "give up after this `duration`")
	fs.StringVar(&c.Progress, "progress", "auto", "`style` of the progress on standard error: bar, plain (lines), off, or auto (a bar on a terminal)")
	err = fs.Parse(args)
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
	case c.Kills < 0:
		err = fmt.Errorf("-kills %d: must not be negative", c.Kills)
	case c.Break != "" && c.Break != withoutTracking && c.Break != withoutSticky:
		err = fmt.Errorf("-break %s: must be tracking or sticky", c.Break)
	case c.Limit <= 0:
		err = fmt.Errorf("-limit %v: must be positive", c.Limit)
	case c.Progress != "auto" && c.Progress != "bar" && c.Progress != "plain" && c.Progress != "off":
		err = fmt.Errorf("-progress %s: must be auto, bar, plain or off", c.Progress)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w (-h for help)", errUsage, err)
	}
	return c, err
}
