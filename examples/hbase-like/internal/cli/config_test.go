package cli_test

import (
	"bytes"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/progress"
)

func parse(line string) (cli.Config, error) {
	return cli.Parse(strings.Fields(line), &bytes.Buffer{})
}

func TestFlags(t *testing.T) {
	c, err := parse("")
	require.NoError(t, err)
	assert.True(t, c.Ordered)
	assert.True(t, c.Faults)
	assert.Equal(t, flights.CSV, c.Format)
	assert.Empty(t, c.In)

	c, err = parse("-mode unordered -capacity 7 -calls 3 -timeout 2s -strategy fixed -retries 4 -delay 1s -jitter full " +
		"-faults=false -seed 9 -in - -out x.jsonl -drain 0 -progress off")
	require.NoError(t, err)
	assert.Equal(t, cli.Config{
		Capacity: 7, Calls: 3, Timeout: 2 * time.Second,
		Retry: cli.Retry{
			Strategy: "fixed", Retries: 4, Delay: time.Second,
			MaxDelay: 400 * time.Millisecond, Multiplier: 2, Jitter: "full",
		},
		Seed: 9, In: "-", Out: "x.jsonl", Format: flights.JSONL, Progress: progress.Off, Interval: time.Second,
		Workers: 3, Kills: 1,
	}, c)

	c, err = parse("-checkpoint dir -out x")
	require.NoError(t, err)
	assert.Equal(t, "dir", c.Checkpoint)
	assert.Equal(t, time.Second, c.Interval)
	c, err = parse("-checkpoint dir -checkpoint-interval 20ms -out x")
	require.NoError(t, err)
	assert.Equal(t, 20*time.Millisecond, c.Interval)
}

func TestFormatOfOutput(t *testing.T) {
	for line, want := range map[string]flights.Format{
		"-out x.csv":                flights.CSV,
		"-out x":                    flights.CSV,
		"-out -":                    flights.CSV,
		"-out x.JSON":               flights.JSONL,
		"-out x.ndjson":             flights.JSONL,
		"-out x.csv -format jsonl":  flights.JSONL,
		"-out x.jsonl -format csv":  flights.CSV,
		"-out out.jsonl/x.csv":      flights.CSV,
		"-format JSONL":             flights.JSONL,
		"-out - -format jsonl":      flights.JSONL,
		"-retries -1 -out x.txt":    flights.CSV,
		"-delay 0 -max-delay 0":     flights.CSV,
		"-strategy fixed -delay 5s": flights.CSV,
	} {
		c, err := parse(line)
		require.NoError(t, err, line)
		assert.Equal(t, want, c.Format, line)
	}
}

func TestConfig_Nonsense(t *testing.T) {
	for line, want := range map[string]string{
		"-mode sorted":    "-mode sorted: must be ordered or unordered",
		"-capacity 0":     "-capacity 0: must be at least 1",
		"-calls -5":       "-calls -5: must be at least 1",
		"-calls many":     `invalid value "many" for flag -calls: parse error`,
		"-timeout 0":      "-timeout 0s: must be positive",
		"-timeout 5":      `invalid value "5" for flag -timeout: parse error`,
		"-strategy hope":  "-strategy hope: must be exponential or fixed",
		"-retries -2":     "-retries -2: must be at least 0, or -1 for no limit",
		"-delay -1s":      "-delay -1s: must not be negative",
		"-delay 2s":       "-max-delay 400ms: must not be below -delay 2s",
		"-multiplier 0.5": "-multiplier 0.5: must be a number of at least 1",
		"-multiplier NaN": "-multiplier NaN: must be a number of at least 1",
		"-multiplier Inf": "-multiplier +Inf: must be a number of at least 1",
		"-jitter some":    "-jitter some: must be none, equal or full",
		"-seed -1":        `invalid value "-1" for flag -seed: parse error`,
		"-drain -1s":      "-drain -1s: must not be negative",
		"-checkpoint d -out x -checkpoint-interval 0":   "-checkpoint-interval 0s: must be positive",
		"-checkpoint d -out x -checkpoint-interval -1s": "-checkpoint-interval -1s: must be positive",
		"-checkpoint d -out x -checkpoint-interval 5":   `invalid value "5" for flag -checkpoint-interval: parse error`,
		"-checkpoint-interval 1s":                       "-checkpoint-interval 1s: needs -checkpoint",
		"-partitions 2":                                 "-partitions 2: needs -checkpoint",
		"-workers 2":                                    "-workers 2: needs -partitions",
		"-kills 0":                                      "-kills 0: needs -partitions",
		"-checkpoint d -out x -partitions -1":           "-partitions -1: must not be negative",
		"-checkpoint d -out x -partitions 2 -workers 0": "-workers 0: must be at least 1",
		"-checkpoint d -out x -partitions 2 -kills -1":  "-kills -1: must not be negative",
		"-checkpoint d":                                 "-checkpoint d: the output must be a file, which survives a crash: give one with -out",
		"-checkpoint d -out -":                          "-checkpoint d: the output must be a file, which survives a crash: give one with -out",
		"-checkpoint d -out x -in -":                    "-checkpoint d: standard input cannot be read again after a crash: give a file with -in",
		"-checkpoint= -out x":                           `-checkpoint "": must be the name of a directory`,
		"-format xml":                                   "-format xml: must be csv or jsonl",
		"-progress loud":                                "-progress loud: must be auto, bar, plain or off",
		"-nonsense":                                     "flag provided but not defined: -nonsense",
		"flights.csv":                                   `unexpected argument "flights.csv": input goes with -in`,
		"-faults maybe":                                 `unexpected argument "maybe": input goes with -in`,
		"-faults=maybe":                                 `invalid boolean value "maybe" for -faults: parse error`,
		"-mode ordered -out":                            "flag needs an argument: -out",
		"-capacity 99999999999999999999":                `invalid value "99999999999999999999" for flag -capacity: value out of range`,
	} {
		_, err := parse(line)
		assert.EqualError(t, err, want, line)
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	_, err := cli.Parse([]string{"-h"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	for _, word := range []string{"Usage:", "Exit status", "-mode", "-seed", "-checkpoint directory", "default 1000"} {
		assert.Contains(t, out.String(), word)
	}
}
