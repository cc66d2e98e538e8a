package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is the command: it starts the processes, kills them, starts them again, and compares the books.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	c, err := parse(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(errOut, "payments:", err)
		return exitUsage
	}
	proven, err := supervise(ctx, c, out, errOut)
	if err != nil {
		fmt.Fprintln(errOut, "payments:", err)
	}
	if err != nil || !proven {
		return exitFailed
	}
	return exitOK
}

func supervise(ctx context.Context, c config, out, errOut io.Writer) (proven bool, err error) {
	dir := c.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "payments-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // it is temporary
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("not done after %v", c.Limit))
	defer cancel()
	s := &supervisor{config: c, dir: dir, begun: time.Now(), providers: map[string]*process{}, starts: map[string]int{}}
	defer s.stop()
	stopProgress := s.startProgress(errOut)
	err = s.runAll(ctx)
	stopProgress()
	if err != nil {
		return false, err
	}
	s.stop()
	r, err := reconcile(ctx, c, dir)
	if err != nil {
		return false, err
	}
	s.summary(out)
	return r.print(out), nil
}

// supervisor keeps the processes running, and kills them.
type supervisor struct {
	config
	dir   string
	begun time.Time

	providers map[string]*process
	job       *process
	starts    map[string]int // by provider; "" is the job

	mu       sync.Mutex
	now      sample // of the job that runs
	before   sample // of those that were killed: calls and in doubt
	jobs     int    // kills
	deaths   int    // kills of providers
	failures int    // runs of the job that ended with an error
	down     bool   // the outage
	wasDown  bool   // it has begun
	merged   int    // dead letters that were sent back
	merges   int
	trouble  string
}

// kill is one that is due.
type kill struct {
	done     int64 // when so many orders are done
	provider string
}

// schedule spreads the kills over the stream.
func (s *supervisor) schedule() (kills []kill) {
	random := rand.New(rand.NewPCG(s.Seed, 17))
	for _, victim := range append([]string{""}, providers[:]...) {
		for range s.Kills {
			kills = append(kills, kill{random.Int64N(max(1, s.Orders*7/10)), victim}) // then comes the outage
		}
	}
	slices.SortStableFunc(kills, func(x, y kill) int { return int(x.done - y.done) })
	return kills
}

func (s *supervisor) startProvider(name string) (err error) {
	s.providers[name], err = s.start(name, func([]byte) {})
	return err
}

func (s *supervisor) startJob() (err error) {
	s.job, err = s.start("", s.sampled)
	return err
}

func (s *supervisor) start(provider string, line func([]byte)) (*process, error) {
	n := s.starts[provider]
	s.starts[provider]++
	return start(settings{
		Provider: provider, Start: n, Dir: s.dir, Seed: s.Seed, Orders: s.Orders, Break: s.Break, Limit: s.Limit + 5*time.Second,
	}, line)
}

// sampled notes what the job prints.
func (s *supervisor) sampled(line []byte) {
	var now sample
	if err := json.Unmarshal(line, &now); err != nil {
		return // the last line of one that was killed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

// runAll runs all processes until the job is done.
func (s *supervisor) runAll(ctx context.Context) error {
	for _, name := range providers {
		if err := s.startProvider(name); err != nil {
			return fmt.Errorf("provider %s: %w", name, err)
		}
	}
	if err := s.startJob(); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	kills := s.schedule()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.job.ended:
			if s.job.err == nil {
				again, err := s.repair(ctx)
				if err != nil || !again {
					return err
				}
				continue
			}
			if s.failures++; s.failures > 3 { // it goes on by itself, unless something is wrong with it
				return fmt.Errorf("job: %w", s.job.failure())
			}
			if err := s.restartJob("job failed"); err != nil {
				return err
			}
		case <-time.After(5 * time.Millisecond):
		}
		for name, p := range s.providers {
			if p.hasEnded() && !(s.down && name == south) {
				return fmt.Errorf("provider %s: %w", name, p.failure())
			}
		}
		// One that was killed begins at 0 again: what it passes then is over.
		for len(kills) > 0 && kills[0].done <= s.sample().Done {
			if err := s.kill(kills[0]); err != nil {
				return err
			}
			kills = kills[1:]
		}
		if s.Outage && !s.wasDown && len(kills) == 0 && s.sample().Done >= s.Orders*6/10 {
			s.down, s.wasDown = true, true
			s.providers[south].kill()
			s.note("outage of " + south)
		}
	}
}

// repair ends the outage when the job has done what it can, and sends the dead letters back. Without any, the job is done.
func (s *supervisor) repair(ctx context.Context) (again bool, err error) {
	if s.down {
		s.down = false
		if err := s.startProvider(south); err != nil {
			return false, fmt.Errorf("provider %s: %w", south, err)
		}
	}
	merged, err := mergeDead(ctx, s.dir)
	if err != nil || merged == 0 {
		return false, err
	}
	s.merged += merged
	s.merges++
	return true, s.restartJob("outage repaired")
}

func (s *supervisor) note(trouble string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = trouble
}

func (s *supervisor) sample() sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *supervisor) kill(k kill) error {
	if k.provider == "" {
		s.job.kill()
		s.mu.Lock()
		s.jobs++
		s.mu.Unlock()
		return s.restartJob("job killed")
	}
	s.providers[k.provider].kill()
	s.mu.Lock()
	s.deaths++
	s.trouble = k.provider + " killed"
	s.mu.Unlock()
	return s.startProvider(k.provider)
}

func (s *supervisor) restartJob(why string) error {
	s.mu.Lock()
	s.before.Calls += s.now.Calls
	s.before.InDoubt += s.now.InDoubt
	s.now.Calls, s.now.InDoubt = 0, 0
	s.trouble = why
	s.mu.Unlock()
	if err := s.startJob(); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	return nil
}

// stop ends all processes. A second one does nothing.
func (s *supervisor) stop() {
	if s.job != nil {
		s.job.kill()
	}
	for _, p := range s.providers {
		if p != nil {
			p.kill()
		}
	}
}

// doubts say what is done about a request that was sent and not answered, by what -break leaves out.
var doubts = map[string]string{
	"":              "each was asked for again, of the same provider, with the same id",
	withoutTracking: "each was asked for again, of the same provider, WITHOUT an id",
	withoutSticky:   "each was asked for again, of the OTHER provider",
}

// outage says what became of the dead letters.
func (s *supervisor) outage() string {
	switch {
	case s.merged > 0 && s.wasDown:
		return south + " was down for longer than the ladder lasts; then the dead letters were merged, and paid"
	case s.merged > 0:
		return "the dead letters were merged, and paid"
	}
	return "none became a dead letter"
}

func (s *supervisor) summary(out io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(out, `
%s orders in %.1fs, trouble of seed %d
  calls made                  %6s
    in doubt: sent, no answer %6s   %s
  kills of the job            %6s   it read the stream from its beginning, and went on where each order was
  kills of providers          %6s
  orders that were given up   %6s   %s
`, thousands(s.Orders), time.Since(s.begun).Seconds(), s.Seed, thousands(s.before.Calls+s.now.Calls), thousands(s.before.InDoubt+s.now.InDoubt), doubts[s.Break],
		thousands(int64(s.jobs)), thousands(int64(s.deaths)), thousands(int64(s.merged)), s.outage())
}
