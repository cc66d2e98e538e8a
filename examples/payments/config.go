package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirflow/weir/progress"
)

type config struct {
	Engine   string // a name or a URL
	Workers  int
	Orders   int64
	Seed     uint64
	Kills    int
	Outage   bool
	Break    string
	Dir      string
	Limit    time.Duration
	Progress progress.Style
	UI       bool
}

// The engines, and the schemes of their URLs.
const (
	onSQLite    = "sqlite"
	onPostgres  = "postgres"
	onEmbedded  = "embedded"
	onJetStream = "nats"
	onKafka     = "kafka"
)

// schemeOf returns the scheme of a URL, or the name of an engine without a URL.
func schemeOf(engine string) string {
	scheme, _, _ := strings.Cut(engine, ":")
	return scheme
}

func (c config) scheme() string { return schemeOf(c.Engine) }

// url returns the engine's URL, or "".
func (c config) url() string {
	if strings.Contains(c.Engine, "://") {
		return c.Engine
	}
	return ""
}

func (c config) isEngine() bool {
	switch c.scheme() {
	case onPostgres, onJetStream:
		return c.url() != ""
	case onKafka:
		return c.url() != "" || c.Engine == onKafka
	}
	return c.Engine == onSQLite || c.Engine == onEmbedded
}

// Values of -break: the protection to leave out.
const (
	withoutTracking = "tracking"
	withoutSticky   = "sticky"
)

var errUsage = errors.New("wrong usage")

const usage = `Charge orders through two payment providers that lose answers, refuse, time out and die.

Usage: payments [flags]

The providers and the workers that call them are processes on this machine, and all of them are killed (SIGKILL) again and again. At the
end the books of the providers are compared with those of the job: each order was charged once, or declined by both.

The engine keeps the orders that wait, and the payments that were made:
  sqlite                         a file
  postgres://HOST/DATABASE       a database
  embedded                       NATS JetStream within this process: no server to install
  nats://HOST:PORT               NATS JetStream
  kafka://HOST:PORT,HOST:PORT    Kafka
  kafka                          a test double of Kafka within this process, which is no server

Exit status: 0 all is well, 1 an order was not charged once or the run failed, 2 wrong usage.

Flags:
`

func parse(args []string, out io.Writer) (c config, err error) {
	fs := flag.NewFlagSet("payments", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var style string
	fs.StringVar(&c.Engine, "engine", onSQLite, "`name` or URL of the engine")
	fs.IntVar(&c.Workers, "workers", 2, "`n` processes share the orders, at least 1")
	fs.Int64Var(&c.Orders, "orders", 400, "length of the stream: `n`, at least 1")
	fs.Uint64Var(&c.Seed, "seed", 1, "which orders, which of them are declined, which trouble: `n`")
	fs.IntVar(&c.Kills, "kills", 5, "kill a worker and each provider `n` times")
	fs.BoolVar(&c.Outage, "outage", true, "one provider refuses connections for 3 s, then answers 503 for 3 s more: longer than the visits of an order last")
	fs.StringVar(&c.Break, "break", "", "leave out a `protection`, to see what it is for: tracking (requests have no ids) or sticky (after an error the other provider is asked)")
	fs.StringVar(&c.Dir, "dir", "", "keep the databases in this `directory`, and go on there (default: a temporary one)")
	fs.DurationVar(&c.Limit, "limit", 100*time.Second, "give up after this `duration`")
	fs.BoolVar(&c.UI, "ui", false, "show the console of the engine in a browser, also after the run, until Ctrl-C")
	fs.StringVar(&style, "progress", string(progress.Auto), "`style` of the progress on standard error: bar, plain (lines), off, or auto (a bar on a terminal)")
	err = fs.Parse(args)
	c.Progress = progress.Style(style)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(out, usage)
		fs.SetOutput(out)
		fs.PrintDefaults()
		return c, err
	case err != nil:
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !c.isEngine():
		err = fmt.Errorf("-engine %s: must be sqlite, embedded or kafka, or a URL postgres://…, nats://… or kafka://…", c.Engine)
	case c.UI && c.scheme() == onKafka:
		err = errors.New("-ui: the console cannot look into topics of Kafka")
	case c.Workers < 1:
		err = fmt.Errorf("-workers %d: must be at least 1", c.Workers)
	case c.Orders < 1:
		err = fmt.Errorf("-orders %d: must be at least 1", c.Orders)
	case c.Kills < 0:
		err = fmt.Errorf("-kills %d: must not be negative", c.Kills)
	case c.Break != "" && c.Break != withoutTracking && c.Break != withoutSticky:
		err = fmt.Errorf("-break %s: must be tracking or sticky", c.Break)
	case c.Limit <= 0:
		err = fmt.Errorf("-limit %v: must be positive", c.Limit)
	case !c.Progress.IsOne():
		err = fmt.Errorf("-progress %s: must be auto, bar, plain or off", c.Progress)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w (-h for help)", errUsage, err)
	}
	return c, err
}
