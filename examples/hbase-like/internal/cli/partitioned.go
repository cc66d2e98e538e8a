package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/show"
)

// PartitionedSummary is printed at the end of a run with -partitions.
type PartitionedSummary struct {
	Config   Config
	Input    string
	Elapsed  time.Duration
	Read     int
	Enriched int
	GivenUp  []ledger.Lost
	Calls    int64
	Retries  int64
	Kills    int      // of workers
	Moves    int      // of partitions to another worker
	Problems []string // empty if every flight came out exactly once and in order
}

// String returns the summary after an empty line.
func (s PartitionedSummary) String() string {
	read := show.Count(s.Read)
	enriched := show.Count(s.Enriched)
	givenUp := show.Count(len(s.GivenUp))
	var out strings.Builder
	fmt.Fprintf(&out, `
%s: %d partitions, %d workers, %s

  elements in           %s
  enriched              %s
  given up              %s

  calls made            %s, of them retries %s
  workers killed        %s
  partitions moved      %s times, to go on elsewhere from their last checkpoints
  time                  %.1fs

`, s.Input, s.Config.Partitions, s.Config.Workers, faults(s.Config), read, enriched, givenUp,
		show.Count(s.Calls), show.Count(s.Retries), show.Count(s.Kills), show.Count(s.Moves), s.Elapsed.Seconds())
	for _, l := range s.GivenUp {
		fmt.Fprintf(&out, "  given up: airport %q, %s (line %d)\n", l.Airport, l.Why, l.Line)
	}
	conclusion := provenByFile(read+" flights", inOrder(s.Config), enriched, givenUp)
	if len(s.Problems) > 0 {
		conclusion = "FAILED: the books do not balance:\n  " + strings.Join(s.Problems, "\n  ")
	}
	fmt.Fprintln(&out, conclusion)
	return out.String()
}
