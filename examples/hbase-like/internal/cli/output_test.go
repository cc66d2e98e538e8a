package cli_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/hclient"
	"github.com/weirflow/weir/examples/internal/hstore"
	"github.com/weirflow/weir/strategies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func summary() cli.Summary {
	c, _ := parse("-seed 7")
	return cli.Summary{
		Config: c, Input: "f.csv", Elapsed: 2 * time.Second,
		Books: ledger.Balance{
			Read: 20_000, Enriched: 19_998, GivenUp: 2, Retried: 1_500,
			Losses:         []ledger.Loss{{Airport: "XQQ", Why: "no such row", Flights: 7, Lines: []int{2, 3, 4}}, {Airport: "Q", Why: "gone", Flights: 1, Lines: []int{9}}},
			Latency:        ledger.Quantiles[time.Duration]{P50: 7_654_321, P99: 1_234_567_890, Max: 2 * time.Second},
			LatencyRetried: ledger.Quantiles[time.Duration]{P50: 300 * time.Millisecond, Max: time.Second},
			Retries:        ledger.Quantiles[int32]{P50: 2, P99: 6, Max: 11},
		},
		Lookups: asyncop.Stats{Attempts: 41_500, RetriesOnResult: 1_100, RetriesOnError: 400, Timeouts: 1},
		Client:  hclient.Stats{NotServing: 300, ConnectionErrors: 100},
		Store:   hstore.Stats{Events: map[hstore.Kind]int{hstore.Late: 40, hstore.Crash: 2, hstore.Move: 3}},
	}
}

// text returns a summary with wrapped lines joined again.
func text(s cli.Summary) string {
	var out strings.Builder
	last := ""
	for line := range strings.Lines(s.String()) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > 80 {
			panic(fmt.Sprintf("%d columns: %s", n, line))
		}
		word, _, _ := strings.Cut(strings.TrimLeft(line, " "), " ")
		if last != "" && word != "" && utf8.RuneCountInString(last+" "+word) > 80 {
			out.WriteString(" " + strings.TrimLeft(line, " "))
		} else {
			out.WriteString("\n" + line)
		}
		last = line
	}
	return out.String() + "\n"
}

func TestSummary(t *testing.T) {
	got := text(summary())
	for _, want := range []string{
		"f.csv: ordered, 15 retries 25ms × 2 up to 400ms with equal jitter, faults of seed 7\n",
		"elements in           20,000\n",
		"retried               1,500 (7.5 %)\n",
		"timed out             1\n",
		"given up              2\n",
		"calls made            41,500, of them retries 1,500\n",
		"no row yet          1,100\n",
		"errors              400 (the client saw 300 × region not served, 100 × connection lost)\n",
		"p50 7.65ms   p99 1.23s   max 2s",
		"p50 2   p99 6   max 11\n",
		"10,000 flights/s in 2s\n",
		"40 × late row, 3 × region move, 2 × server crash\n",
		"  airport \"XQQ\": 7 flights, no such row (lines 2, 3, 4, …)\n",
		"  airport \"Q\": 1 flight, gone (line 9)\n",
		"proven: 20,000 flights came out exactly once, in input order: 19,998 enriched, 2 given up.\n",
	} {
		assert.Contains(t, got, want)
	}
	assert.NotContains(t, got, "abandoned")
}

func TestSummaryOfOtherRuns(t *testing.T) {
	s := summary()
	s.Config.Ordered, s.Config.Faults = false, false
	s.Config.Retry = cli.Retry{Strategy: "fixed", Retries: strategies.Unlimited, Delay: time.Second, Jitter: "none"}
	got := text(s)
	assert.Contains(t, got, "f.csv: unordered, unlimited retries every 1s, no faults\n")
	assert.NotContains(t, got, "trouble")
	assert.NotContains(t, got, "input order")

	s = summary()
	s.Interrupted, s.NotTaken, s.Books.Abandoned = true, 64, 30
	got = text(s)
	assert.Contains(t, got, "abandoned             30 in flight when the time to drain was over\n")
	assert.Contains(t, got, "not started           64 read, but not begun\n")
	assert.Contains(t, got, "interrupted: of 20,000 flights, 19,998 came out enriched and 2 given up, in input order; 30 abandoned, 64 not started; none twice, none lost.\n")

	s = summary()
	s.Proof = errors.New("line 7: enriched, and enriched before")
	got = text(s)
	assert.Contains(t, got, "FAILED: line 7: enriched, and enriched before\n")
	assert.NotContains(t, got, "proven")

	empty := text(cli.Summary{Config: cli.Config{Faults: true, Retry: cli.Retry{Retries: 1, Jitter: "none"}}})
	assert.Contains(t, empty, "throughput            0.0 flights/s")
	assert.Contains(t, empty, "1 retry ")
	assert.Contains(t, empty, "too short")
	assert.False(t, strings.Contains(empty, "NaN") || strings.Contains(empty, "-"), empty)
}

func TestSummaryOfCheckpoints(t *testing.T) {
	s := summary()
	s.Checkpoints = &cli.Checkpoints{}
	got := text(s)
	assert.Contains(t, got, "resumed from          the beginning: there was no checkpoint\n")
	assert.Contains(t, got, "proven: 20,000 flights are in the output file exactly once, in input order, or given up: 19,998 enriched, 2 given up.\n")

	s.Checkpoints = &cli.Checkpoints{Resumed: 12, Before: 16_000}
	got = text(s)
	assert.Contains(t, got, "resumed from          checkpoint 12, with 16,000 flights done\n")
	assert.Contains(t, got, "2,000 flights/s in 2s\n", "of this run")

	s.Checkpoints = &cli.Checkpoints{Resumed: 12, Before: 20_000, Nothing: true}
	assert.Contains(t, text(s), "resumed from          checkpoint 12, which has all 20,000 flights: the job was done already\n")

	s.Checkpoints = &cli.Checkpoints{Resumed: 12, Before: 10}
	s.Interrupted, s.Books.Enriched, s.Books.Missing, s.NotTaken = true, 18_000, 1_998, 1_998
	got = text(s)
	assert.Contains(t, got, "to be done            1,998\n")
	assert.Contains(t, got, "suspended in a last checkpoint: of 20,000 flights, 18,000 are in the output file and 2 given up, in input order, none twice; "+
		"start again with the same flags to go on.\n")
	assert.NotContains(t, got, "abandoned")

	s.Proof = errors.New("no")
	assert.Contains(t, text(s), "FAILED: no\n")
}
