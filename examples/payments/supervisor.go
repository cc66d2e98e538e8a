package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/procs"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/progress"
)

// run is the command: it starts, kills and restarts processes, and compares the books.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	return show.Command("payments", errOut,
		func() (config, error) { return parse(args, out) },
		func(c config) (proven bool, err error) { return supervise(ctx, c, out, errOut) })
}

func supervise(ctx context.Context, c config, out, errOut io.Writer) (proven bool, err error) {
	dir := c.Dir
	if dir == "" {
		dir, err = os.MkdirTemp("", "payments-")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // temporary
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	outer := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("not done after %v", c.Limit))
	defer cancel()
	s := &supervisor{
		config: c, dir: dir, begun: time.Now(), random: rand.New(rand.NewPCG(c.Seed, 23)),
		processes: procs.NewSupervisor(c.Limit + 5*time.Second), starts: map[string]int{},
		workers: make([]sample, c.Workers),
	}
	s.engine, err = start(ctx, c, dir)
	if err != nil {
		return false, fmt.Errorf("-engine %s: %w", c.Engine, orCause(ctx, err))
	}
	defer func() {
		s.processes.Stop()
		err = errors.Join(err, s.engine.close(c.Dir == ""))
	}()
	if c.UI {
		stopUI, err := showConsole(outer, s.engine.keeps(), errOut)
		if err != nil {
			return false, err
		}
		defer stopUI()
	}
	stopProgress := progress.Line{
		Out: errOut, Sample: s.progress, What: "orders", Style: c.Progress, Columns: show.Columns(errOut),
	}.Start()
	err = s.runAll(ctx)
	stopProgress()
	if err != nil {
		return false, orCause(ctx, err)
	}
	s.processes.Stop()
	receipts, err := patiently(ctx, s.engine.receipts)
	if err != nil {
		return false, orCause(ctx, err)
	}
	dead, err := s.engine.dead(ctx)
	if err != nil {
		return false, orCause(ctx, err)
	}
	r, err := reconcile(ctx, c, dir, receipts, dead)
	if err != nil {
		return false, orCause(ctx, err)
	}
	s.summary(out)
	proven = r.print(out)
	if c.UI {
		fmt.Fprintln(errOut, "The console is there until Ctrl-C.")
		<-outer.Done()
	}
	return proven, nil
}

// orCause returns the cause of ctx's end if it has ended: other errors follow from that.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// supervisor keeps the processes running and kills some of them.
type supervisor struct {
	config
	dir    string
	begun  time.Time
	engine engine
	random *rand.Rand

	processes *procs.Supervisor
	starts    map[string]int // by provider; "" counts the workers

	mu       sync.Mutex
	workers  []sample // last report of each worker
	done     int64    // paid, or declined by both
	before   sample   // totals of ended workers
	kills    int      // of workers
	deaths   int      // of providers
	failures int      // workers that ended with an error
	trouble  string

	outage time.Time // its start; zero before it
	down   bool
}

type kill struct {
	done     int64 // due when this many orders are done
	provider string
}

// firstLot is the number of orders put before the outage. The others are put after its
// start, however fast the first ones were.
func (s *supervisor) firstLot() int64 {
	if s.Outage {
		return s.Orders * 6 / 10
	}
	return s.Orders
}

// schedule spreads the kills over the first lot.
func (s *supervisor) schedule() (kills []kill) {
	random := rand.New(rand.NewPCG(s.Seed, 17))
	for _, victim := range append([]string{""}, bank.Providers[:]...) {
		for range s.Kills {
			kills = append(kills, kill{random.Int64N(max(1, s.firstLot()*9/10)), victim})
		}
	}
	slices.SortStableFunc(kills, func(x, y kill) int { return int(x.done - y.done) })
	return kills
}

func (s *supervisor) startProvider(name string, down time.Duration) error {
	return s.start(name, settings{Provider: name, Down: down}, func([]byte) {})
}

func workerName(i int) string { return fmt.Sprintf("worker %d", i) }

func (s *supervisor) startWorker(i int) error {
	s.mu.Lock()
	s.before.add(s.workers[i])
	s.workers[i] = sample{}
	s.mu.Unlock()
	return s.start(workerName(i), settings{Worker: i, At: s.engine.location(), Break: s.Break}, func(line []byte) {
		var now sample
		if err := json.Unmarshal(line, &now); err != nil {
			return // a line that the kill cut short
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.workers[i] = now
	})
}

func (s *supervisor) start(name string, set settings, line func([]byte)) error {
	set.Start = s.starts[set.Provider]
	set.Dir = s.dir
	set.Seed = s.Seed
	s.starts[set.Provider]++
	return procs.Run(s.processes, name, set, line)
}

// runAll runs all processes until every order is done.
func (s *supervisor) runAll(ctx context.Context) error {
	if err := prepareJob(ctx, s.dir); err != nil {
		return err
	}
	orders := bank.Orders(s.Seed, s.Orders)
	if err := s.put(ctx, "first", orders[:s.firstLot()]); err != nil {
		return err
	}
	for _, name := range bank.Providers {
		if err := s.startProvider(name, 0); err != nil {
			return err
		}
	}
	for i := range s.workers {
		if err := s.startWorker(i); err != nil {
			return err
		}
	}
	kills := s.schedule()
	for idle := 0; idle < 2; { // an order that moves between two counts to the other provider is in neither
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		if err := s.check(); err != nil {
			return err
		}
		now, err := patiently(ctx, s.engine.look)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.done = min(now.paid+now.dead, s.Orders)
		s.mu.Unlock()
		for len(kills) > 0 && kills[0].done <= s.done {
			if err := s.kill(kills[0]); err != nil {
				return err
			}
			kills = kills[1:]
		}
		switch {
		case s.Outage && s.outage.IsZero() && s.done >= s.firstLot():
			s.outage, s.down = time.Now(), true
			s.processes.Kill(bank.South)
			s.note("outage of " + bank.South)
			if err := s.put(ctx, "second", orders[s.firstLot():]); err != nil {
				return err
			}
		case s.down && time.Since(s.outage) > refuses:
			s.down = false
			if err := s.startProvider(bank.South, overloaded); err != nil {
				return err
			}
		}
		if idle++; now.open > 0 || s.down {
			idle = 0
		}
	}
	return nil
}

// The outage of south.
const (
	refuses    = 3 * time.Second // connections
	overloaded = 3 * time.Second // then answers 503, with and without Retry-After
)

// put puts a lot of orders, unless an earlier run in this directory has put it. A queue
// recognises an id only while its message is there, so a program that must not put an
// order twice has to record its puts. Engines outside the directory get the lot again.
func (s *supervisor) put(ctx context.Context, lot string, orders []bank.Order) error {
	done := filepath.Join(s.dir, fmt.Sprintf("put-%s-%d-orders-of-seed-%d", lot, s.Orders, s.Seed))
	isInDir := s.Engine == onSQLite || s.Engine == onEmbedded
	_, err := os.Stat(done)
	if err == nil && isInDir {
		return nil
	}
	_, err = patiently(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.engine.put(ctx, orders) })
	if err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o600)
}

// check fails if a provider has ended by itself. It restarts failed workers, at most
// three times in all.
func (s *supervisor) check() error {
	for _, exit := range s.processes.Exits() {
		if slices.Contains(bank.Providers[:], exit.Name) {
			return exit.Err
		}
		s.failures++
		if s.failures > 3 {
			return exit.Err
		}
		s.note("worker failed")
		for i := range s.workers {
			if workerName(i) != exit.Name {
				continue
			}
			if err := s.startWorker(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *supervisor) note(trouble string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = trouble
}

func (s *supervisor) kill(k kill) error {
	if k.provider == "" {
		i := s.random.IntN(len(s.workers))
		s.processes.Kill(workerName(i))
		s.mu.Lock()
		s.kills++
		s.trouble = "worker killed"
		s.mu.Unlock()
		return s.startWorker(i)
	}
	s.processes.Kill(k.provider)
	s.mu.Lock()
	s.deaths++
	s.trouble = k.provider + " killed"
	s.mu.Unlock()
	return s.startProvider(k.provider, 0)
}

// calls returns the totals of all workers so far. The caller holds mu.
func (s *supervisor) calls() sample {
	sum := s.before
	for _, w := range s.workers {
		sum.add(w)
	}
	return sum
}

func (s *supervisor) progress() progress.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := progress.State{Done: s.done, Total: s.Orders}
	if s.trouble != "" {
		state.LastError = errors.New(s.trouble)
	}
	return state
}

// doubts describes how requests without an answer are handled, by value of -break.
var doubts = map[string]string{
	"":              "asked again, with the same id",
	withoutTracking: "asked again, WITHOUT an id",
	withoutSticky:   "the OTHER provider was asked",
}

func (s *supervisor) runsOn() string {
	switch {
	case s.Engine == onEmbedded:
		return "JetStream in this process"
	case s.Engine == onKafka:
		return "kfake, a TEST DOUBLE of Kafka: no server, all in memory"
	case s.scheme() == onJetStream:
		return "JetStream at " + s.Engine
	case s.scheme() == onKafka:
		return "Kafka at " + s.Engine
	case s.scheme() == onPostgres:
		return "PostgreSQL"
	}
	return "SQLite"
}

func (s *supervisor) summary(out io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.calls()
	fmt.Fprintf(out, `
%s orders in %.1fs, trouble of seed %d
on %s, %d workers
  calls made                  %6s
    in doubt: sent, no answer %6s   %s
  kills of workers            %6s   their orders were redelivered, and resumed
  kills of providers          %6s
  outages of backends         %6s   orders waited, and were called when their provider answered again
`, show.Count(s.Orders), time.Since(s.begun).Seconds(), s.Seed, s.runsOn(), s.Workers, show.Count(sum.Calls), show.Count(sum.InDoubt), doubts[s.Break],
		show.Count(s.kills), show.Count(s.deaths), show.Count(sum.Trips))
}
