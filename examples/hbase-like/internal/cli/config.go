package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/progress"
	"github.com/weirflow/weir/strategies"
)

// Config has the parsed flags, all valid.
type Config struct {
	Ordered  bool
	Capacity int // flights in flight per look-up
	Calls    int // calls at once per look-up
	Timeout  time.Duration
	Retry    Retry

	Faults bool
	Seed   uint64

	In     string // a file; "-" is standard input, "" the embedded flights
	Out    string // a file; "-" is standard output, "" nowhere
	Format flights.Format

	Checkpoint string        // directory of checkpoints, or ""
	Interval   time.Duration // between two checkpoints

	Partitions int // parts of the input, each with a pipeline; 0 means one pipeline in this process
	Workers    int // processes that share the partitions
	Kills      int // of workers

	Drain    time.Duration // after Ctrl-C
	Progress progress.Style
}

// Retry configures a retry strategy.
type Retry struct {
	Strategy   string // "fixed" or "exponential"
	Retries    int    // strategies.Unlimited: until the timeout
	Delay      time.Duration
	MaxDelay   time.Duration // of exponential
	Multiplier float64       // of exponential
	Jitter     string        // "none", "equal" or "full"
}

const usageHead = `Enrich flights by asynchronous look-ups in an HBase-like store.

Usage: hbase-like [flags]

Every flight is looked up twice, its origin and its destination airport, in a
store that runs in this process but is reached over TCP. The store is late and
faulty on purpose: rows appear after they were asked for, regions move,
connections break, servers are slow, die and come back. At the end the run
proves that every flight came out exactly once, and in order if asked for.
With -checkpoint that holds even if it is killed and started again in between,
and with -partitions if some of several worker processes are.

Exit status: 0 all is well, 1 the run failed or the proof did, 2 wrong usage,
130 interrupted.

Flags:
`

// Parse reads the flags. It writes help to out, and then returns flag.ErrHelp.
func Parse(args []string, out io.Writer) (Config, error) {
	var c Config
	fs := flag.NewFlagSet("hbase-like", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	mode, format, style := c.define(fs)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(out, usageHead)
		fs.SetOutput(out)
		fs.PrintDefaults()
	}
	if err != nil {
		return Config{}, err
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q: input goes with -in", fs.Arg(0))
	}
	c.Ordered = *mode == "ordered"
	c.Progress = progress.Style(*style)
	if *format == "" {
		*format = string(formatOf(c.Out))
	}
	c.Format, err = flights.ParseFormat(*format)
	if err != nil {
		return Config{}, usageError("format", *format, "must be csv or jsonl")
	}
	if err := c.check(*mode); err != nil {
		return Config{}, err
	}
	fs.Visit(func(f *flag.Flag) {
		switch {
		case f.Name == "checkpoint" && c.Checkpoint == "":
			err = usageError(f.Name, `""`, "must be the name of a directory")
		case f.Name == "checkpoint-interval" && c.Checkpoint == "", f.Name == "partitions" && c.Checkpoint == "":
			err = usageError(f.Name, f.Value, "needs -checkpoint")
		case (f.Name == "workers" || f.Name == "kills") && c.Partitions == 0:
			err = usageError(f.Name, f.Value, "needs -partitions")
		}
	})
	if c.Retry.Retries == unlimited {
		c.Retry.Retries = strategies.Unlimited
	}
	return c, err
}

// define defines the flags, and returns the values of flags that are not fields.
func (c *Config) define(fs *flag.FlagSet) (mode, format, style *string) {
	mode = fs.String("mode", "ordered", "`order` of the output: ordered (as the input) or unordered (as ready)")
	fs.IntVar(&c.Capacity, "capacity", 1000, "flights in flight per look-up, those that wait for a retry included: `n`, at least 1")
	fs.IntVar(&c.Calls, "calls", 32, "calls at once per look-up: `n`, at least 1")
	fs.DurationVar(&c.Timeout, "timeout", 15*time.Second, "total time for one look-up of a flight, over all its attempts: `duration`")
	fs.StringVar(&c.Retry.Strategy, "strategy", "exponential", "`kind` of delays between attempts: exponential or fixed")
	fs.IntVar(&c.Retry.Retries, "retries", 15, "retries after the first attempt: `n`, 0 for none, -1 for as many as the timeout allows")
	fs.DurationVar(&c.Retry.Delay, "delay", 25*time.Millisecond, "delay before the first retry: `duration`; with -strategy fixed before every one")
	fs.DurationVar(&c.Retry.MaxDelay, "max-delay", 400*time.Millisecond, "most that an exponential delay grows to: `duration`")
	fs.Float64Var(&c.Retry.Multiplier, "multiplier", 2, "growth of an exponential delay per retry: `factor`, at least 1")
	fs.StringVar(&c.Retry.Jitter, "jitter", "equal", "`kind` of spread of the delays: none, equal (half to all of it) or full (none to all of it)")
	fs.BoolVar(&c.Faults, "faults", true, "let the store get into trouble; -faults=false for fair weather")
	fs.Uint64Var(&c.Seed, "seed", 1, "which trouble: `n`; the same seed makes the same trouble")
	fs.StringVar(&c.In, "in", "", "CSV of flights: `file`, or - for standard input, with the columns date, delay, distance, origin and destination (default: 20,000 flights of 2001, built in)")
	fs.StringVar(&c.Out, "out", "", "where enriched flights go: `file`, or - for standard output (default: nowhere)")
	format = fs.String("format", "", "`format` of the output: csv or jsonl (default: by the ending of -out, csv if that does not tell)")
	fs.StringVar(&c.Checkpoint, "checkpoint", "", "take checkpoints in this `directory`, and go on from the last one there: a run that was killed, even with SIGKILL, and is started again with the same flags completes its output; needs -out with a file, and no -in - (default: no checkpoints)")
	fs.DurationVar(&c.Interval, "checkpoint-interval", time.Second, "time between two checkpoints: `duration`, positive; what has come out is written to -out with each; needs -checkpoint")
	fs.IntVar(&c.Partitions, "partitions", 0, "cut the input into `n` partitions, which worker processes share; needs -checkpoint, whose directory they share, too (default: one pipeline in this process)")
	fs.IntVar(&c.Workers, "workers", 3, "`n` worker processes, at least 1; needs -partitions")
	fs.IntVar(&c.Kills, "kills", 1, "kill a worker (SIGKILL) `n` times, and start another one; needs -partitions")
	fs.DurationVar(&c.Drain, "drain", 5*time.Second, "time to finish what is in flight after Ctrl-C, or with -checkpoint to take a last checkpoint of it: `duration`; a second Ctrl-C ends it")
	style = fs.String("progress", string(progress.Auto), "`style` of the progress on standard error: bar, plain (lines), off, or auto (a bar on a terminal)")
	return mode, format, style
}

const unlimited = -1

func formatOf(name string) flights.Format {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".jsonl", ".ndjson", ".json":
		return flights.JSONL
	}
	return flights.CSV
}

func (c *Config) check(mode string) error {
	oneOf := func(flag, value string, allowed ...string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		last := len(allowed) - 1
		return usageError(flag, value, "must be "+strings.Join(allowed[:last], ", ")+" or "+allowed[last])
	}
	must := func(ok bool, flag string, value any, what string) error {
		if ok {
			return nil
		}
		return usageError(flag, value, what)
	}
	r := c.Retry
	growth := r.Multiplier >= 1 && !math.IsInf(r.Multiplier, 0) // false for NaN, too
	for _, err := range []error{
		oneOf("mode", mode, "ordered", "unordered"),
		must(c.Capacity >= 1, "capacity", c.Capacity, "must be at least 1"),
		must(c.Calls >= 1, "calls", c.Calls, "must be at least 1"),
		must(c.Timeout > 0, "timeout", c.Timeout, "must be positive"),
		oneOf("strategy", r.Strategy, "exponential", "fixed"),
		must(r.Retries >= unlimited, "retries", r.Retries, "must be at least 0, or -1 for no limit"),
		must(r.Delay >= 0, "delay", r.Delay, "must not be negative"),
		must(r.Strategy == "fixed" || r.MaxDelay >= r.Delay, "max-delay", r.MaxDelay, fmt.Sprintf("must not be below -delay %v", r.Delay)),
		must(growth, "multiplier", r.Multiplier, "must be a number of at least 1"),
		oneOf("jitter", r.Jitter, "none", "equal", "full"),
		must(c.Checkpoint == "" || c.In != "-", "checkpoint", c.Checkpoint, "standard input cannot be read again after a crash: give a file with -in"),
		must(c.Checkpoint == "" || c.Out != "" && c.Out != "-", "checkpoint", c.Checkpoint, "the output must be a file, which survives a crash: give one with -out"),
		must(c.Interval > 0, "checkpoint-interval", c.Interval, "must be positive"),
		must(c.Partitions >= 0, "partitions", c.Partitions, "must not be negative"),
		must(c.Workers >= 1, "workers", c.Workers, "must be at least 1"),
		must(c.Kills >= 0, "kills", c.Kills, "must not be negative"),
		must(c.Drain >= 0, "drain", c.Drain, "must not be negative"),
		oneOf("progress", string(c.Progress), "auto", "bar", "plain", "off"),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func usageError(flag string, value any, what string) error {
	return fmt.Errorf("-%s %v: %s", flag, value, what)
}
