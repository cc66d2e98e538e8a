package tally

import (
	"math"

	"github.com/weirflow/weir/backend"
)

// BackendNumber is a number of a backend. In a system of metrics its name begins with
// "weir.backend.".
type BackendNumber struct {
	Name, Help, Unit string
	Counts           bool // only grows
	Of               func(s *backend.Stats) (v float64, some bool)
}

// BackendNumbers are a backend's numbers, without its state.
var BackendNumbers = []BackendNumber{
	{"limit", "Calls that may run at a time; missing without a limit.", "call", false, bounded(func(s *backend.Stats) int { return s.Limit })},
	{"in_use", "Calls that run.", "call", false, always(func(s *backend.Stats) float64 { return float64(s.InUse) })},
	{"waiting", "Operators that wait.", "operator", false, always(func(s *backend.Stats) float64 { return float64(s.Waiting) })},
	{"tenants_paused", "Tenants whose calls wait until a time that the service has named, or for a try.", "tenant", false, always(func(s *backend.Stats) float64 { return float64(s.TenantsPaused) })},
	{"tenants_down", "Tenants that are down, probing or held.", "tenant", false, always(func(s *backend.Stats) float64 { return float64(s.TenantsDown) })},
	{"retries_left", "Retries that the budget has now; missing without a budget.", "retry", false, bounded(func(s *backend.Stats) int { return s.RetriesLeft })},
	{"state_since", "When the state began, since 1970.", "s", false, always(func(s *backend.Stats) float64 { return float64(s.Since.UnixMicro()) / 1e6 })},
	{"attempts", "Attempts that have started.", "attempt", true, always(func(s *backend.Stats) float64 { return float64(s.Started) })},
	{"attempts_lost", "Attempts that were lost.", "attempt", true, always(func(s *backend.Stats) float64 { return float64(s.Lost) })},
	{"attempts_throttled", "Attempts that the service answered with a request for fewer calls.", "attempt", true, always(func(s *backend.Stats) float64 { return float64(s.Throttled) })},
	{"retries_refused", "Retries that the budget has refused.", "retry", true, always(func(s *backend.Stats) float64 { return float64(s.RetriesRefused) })},
	{"trips", "How often it went down.", "trip", true, always(func(s *backend.Stats) float64 { return float64(s.Trips) })},
	{"tenant_trips", "How often a tenant went down.", "trip", true, always(func(s *backend.Stats) float64 { return float64(s.TenantTrips) })},
	{"would_have_tripped", "How often it would have gone down without DryRun.", "trip", true, always(func(s *backend.Stats) float64 { return float64(s.WouldHaveTripped) })},
}

// BackendStates are all states of a backend.
var BackendStates = []backend.State{backend.Up, backend.Down, backend.Probing, backend.Ramping, backend.Held}

func always(f func(s *backend.Stats) float64) func(s *backend.Stats) (float64, bool) {
	return func(s *backend.Stats) (float64, bool) { return f(s), true }
}

func bounded(f func(s *backend.Stats) int) func(s *backend.Stats) (float64, bool) {
	return func(s *backend.Stats) (float64, bool) { return float64(f(s)), f(s) != math.MaxInt }
}
