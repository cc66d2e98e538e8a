package jobs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
)

func TestServices_SharedBackend(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	pay := func(state, why string, since time.Time, limit, inUse int) []jobs.Backend {
		return []jobs.Backend{{Name: "pay", State: state, Why: why, Since: since, Limit: limit, Fleet: 50, InUse: inUse, Waiting: 1}}
	}
	list := jobs.Services([]jobs.Worker{
		{ID: "w2", Seen: ago(15 * time.Second), Backends: pay("up", "", ago(time.Hour), 25, 20)},
		{ID: "w1", Seen: ago(2 * time.Second), Backends: pay("down", "503", ago(10*time.Second), 25, 3)},
		{ID: "w3", Seen: ago(2 * time.Minute), Backends: pay("held", "old", ago(time.Hour), 10, 10)},
	}, now)
	require.Len(t, list, 1)
	s := list[0]
	require.Equal(t, []string{"w1", "w2", "w3"}, []string{s.Processes[0].Worker, s.Processes[1].Worker, s.Processes[2].Worker})
	require.True(t, s.Processes[2].IsSilent)
	s.Processes = nil
	require.Equal(t, jobs.Service{
		Name: "pay", IsShared: true, State: "down", In: 2, Reporting: 2, Why: "503", Since: ago(10 * time.Second), Limit: 50, InUse: 23, Waiting: 2,
	}, s, "the last report has the state of the fleet")
}

func TestServices_OwnBackends(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	worker := func(id, state, why string, since time.Duration, limit int) jobs.Worker {
		return jobs.Worker{ID: id, Seen: now, Backends: []jobs.Backend{
			{Name: "pay", State: state, Why: why, Since: now.Add(-since), Until: now.Add(since), Limit: limit, InUse: 1},
			{Name: "air", State: "up", Limit: -1},
		}}
	}
	list := jobs.Services([]jobs.Worker{
		worker("w1", "up", "", time.Hour, 10), worker("w2", "down", "503", time.Second, 10), worker("w3", "down", "504", time.Minute, 10),
	}, now)
	require.Len(t, list, 2)
	require.Equal(t, "air", list[0].Name)
	require.Equal(t, -1, list[0].Limit)
	s := list[1]
	s.Processes = nil
	require.Equal(t, jobs.Service{
		Name: "pay", State: "down", In: 2, Reporting: 3, Why: "503", Since: now.Add(-time.Minute), Until: now.Add(time.Minute), Limit: 30, InUse: 3,
	}, s)
}

func TestServices_SilentWorkers(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	list := jobs.Services([]jobs.Worker{
		{ID: "w1", Seen: now.Add(-2 * time.Minute), Backends: []jobs.Backend{{Name: "pay", State: "down", Limit: 5, InUse: 5}}},
	}, now)
	require.Len(t, list, 1)
	require.Empty(t, list[0].State)
	require.Zero(t, list[0].Reporting)
	require.Zero(t, list[0].InUse)
	require.Equal(t, "down", list[0].Processes[0].State)
}
