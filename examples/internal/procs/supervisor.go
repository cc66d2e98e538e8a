package procs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Supervisor starts and kills an example's processes by name. It is safe for concurrent
// use.
type Supervisor struct {
	limit time.Duration // of each process's life

	mu        sync.Mutex
	processes map[string]*Process // running, or ended by themselves; guarded by mu
}

// NewSupervisor returns a Supervisor whose processes end after limit in any case.
func NewSupervisor(limit time.Duration) *Supervisor {
	return &Supervisor{limit: limit, processes: map[string]*Process{}}
}

// Run starts a process and waits until it is ready. It replaces an ended process of the
// same name. line receives each line that the process prints after that.
func Run[S any](s *Supervisor, name string, settings S, line func(text []byte)) error {
	p, err := Start(settings, s.limit, line)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.keep(name, p)
	return nil
}

// RunSoon is Run without the wait: ready is closed when the process is ready or has
// ended.
func RunSoon[S any](s *Supervisor, name string, settings S) (ready <-chan struct{}, err error) {
	p, ready, err := Begin(settings, s.limit, func([]byte) {})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.keep(name, p)
	return ready, nil
}

func (s *Supervisor) keep(name string, p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[name] = p
}

// Kill kills the named process, if there is one, and waits for its end.
func (s *Supervisor) Kill(name string) {
	s.mu.Lock()
	p := s.processes[name]
	delete(s.processes, name)
	s.mu.Unlock()
	if p != nil {
		p.Kill()
	}
}

// Exit is the end of a process that was not killed.
type Exit struct {
	Name string
	Err  error // never nil
}

// Exits returns the processes that have ended by themselves and were not replaced.
func (s *Supervisor) Exits() (all []Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, p := range s.processes {
		if !p.HasEnded() {
			continue
		}
		err := p.Failure()
		if err == nil {
			err = errors.New("it has ended")
		}
		all = append(all, Exit{name, fmt.Errorf("%s: %w", name, err)})
	}
	slices.SortFunc(all, func(a, b Exit) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Stop kills all processes. It may be called twice.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	processes := s.processes
	s.processes = map[string]*Process{}
	s.mu.Unlock()
	for _, p := range processes {
		p.Kill()
	}
}
