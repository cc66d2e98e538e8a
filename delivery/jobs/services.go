package jobs

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// SilentAfter is the age from which a worker's report is not evidence about its backends.
// Workers report every 20 s.
const SilentAfter = time.Minute

// Service is a backend in all workers that report it, with its processes.
type Service struct {
	Name      string
	IsShared  bool      // its processes share one state and one limit: see backend.Shared
	State     string    // of a shared backend as reported last; else the worst state of a process. "" if all workers are silent
	In        int       // processes in State; of a shared backend all that report
	Reporting int       // processes that are not silent
	Why       string    // the reason for State
	Since     time.Time // start of State, as in [Backend]; of several processes the earliest
	Until     time.Time // as in [Backend]; of several processes the latest
	Limit     int       // calls of all processes at a time; -1 means no limit
	InUse     int       // calls of all processes
	Waiting   int       // operators of all processes
	Processes []ServiceProcess
}

// ServiceProcess is the backend of a worker.
type ServiceProcess struct {
	Worker   string    // its ID
	Seen     time.Time // when it reported
	IsSilent bool      // silent for SilentAfter, so its report is not evidence
	Backend
}

// worst has the states of a backend, the worst first.
var worst = []string{"held", "down", "probing", "ramping", "up"}

// Services returns the backends that workers report, by name, without processes that are
// silent at now.
func Services(workers []Worker, now time.Time) []Service {
	byName := map[string]*Service{}
	for _, w := range workers {
		for _, b := range w.Backends {
			s := byName[b.Name]
			if s == nil {
				s = &Service{Name: b.Name}
				byName[b.Name] = s
			}
			s.Processes = append(s.Processes, ServiceProcess{w.ID, w.Seen, now.Sub(w.Seen) > SilentAfter, b})
		}
	}
	var list []Service
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		s := byName[name]
		slices.SortFunc(s.Processes, func(a, b ServiceProcess) int { return cmp.Compare(a.Worker, b.Worker) })
		s.sum()
		list = append(list, *s)
	}
	return list
}

func (s *Service) sum() {
	var last ServiceProcess
	fleet := 0
	for _, p := range s.Processes {
		if p.IsSilent {
			continue
		}
		s.Reporting++
		s.InUse += p.InUse
		s.Waiting += p.Waiting
		if s.Limit < 0 || p.Limit < 0 {
			s.Limit = -1
		} else {
			s.Limit += p.Limit
		}
		if s.State == "" || slices.Index(worst, p.State) < slices.Index(worst, s.State) {
			s.State = p.State
		}
		if p.Fleet > 0 && !p.Seen.Before(last.Seen) {
			last = p
			fleet = p.Fleet
		}
	}
	s.IsShared = fleet > 0
	if s.IsShared {
		s.State = last.State
		s.In = s.Reporting
		s.Why = last.Why
		s.Since = last.Since
		s.Until = last.Until
		s.Limit = fleet
		return
	}
	for _, p := range s.Processes {
		if p.IsSilent || p.State != s.State {
			continue
		}
		s.In++
		s.Why = cmp.Or(s.Why, p.Why)
		if s.Since.IsZero() || p.Since.Before(s.Since) {
			s.Since = p.Since
		}
		if p.Until.After(s.Until) {
			s.Until = p.Until
		}
	}
}
