package jobs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
)

// The owner of a partition is the worker with the highest epoch, unless others have found
// since that it is unowned.
func TestOwners(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	worker := func(id string, seconds int, all ...jobs.Partition) jobs.Worker {
		return jobs.Worker{ID: id, Seen: at.Add(time.Duration(seconds) * time.Second), Partitions: all}
	}
	p := func(name string, epoch uint64, state string) jobs.Partition {
		return jobs.Partition{Pipeline: "flights", Name: name, Epoch: epoch, State: state, Lag: int64(epoch)}
	}
	owners := map[string]string{}
	for _, o := range jobs.Owners([]jobs.Worker{
		worker("dead", 0, p("moved", 3, "running"), p("killed", 5, "running"), p("unsaid", 1, "running")),
		worker("w1", 60, p("moved", 4, "running"), p("killed", 0, jobs.Unowned), p("taken", 0, jobs.Unowned)),
		worker("w2", 55, p("taken", 9, "running"), p("never", 0, jobs.Unowned)),
		worker("w3", 70, p("static", 0, "running"), p("static2", 0, "running")),
		worker("w4", 75, p("static", 0, "failing")),
	}) {
		require.Equal(t, "flights", o.Pipeline)
		owners[o.Name] = o.Worker
	}
	require.Equal(t, map[string]string{
		"moved": "w1", "killed": "", "unsaid": "dead", "taken": "w2", "never": "", "static": "w4", "static2": "w3",
	}, owners)
	require.Empty(t, jobs.Owners(nil))
}
