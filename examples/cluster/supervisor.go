package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/procs"
	"github.com/weirflow/weir/examples/internal/show"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/message"
)

// run is the command: it starts, kills and restarts processes, and compares the result
// with the orders.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	return show.Command("cluster", errOut,
		func() (config, error) { return parse(args, out) },
		func(c config) (proven bool, err error) { return supervise(ctx, c, out, errOut) })
}

func supervise(ctx context.Context, c config, out, errOut io.Writer) (proven bool, err error) {
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("not done after %v", c.Limit))
	defer cancel()
	s, err := newSupervisor(c, dir)
	if err != nil {
		return false, err
	}
	defer s.js.Conn().Close()
	defer s.processes.Stop()
	stopView := s.startView(errOut)
	o, err := s.runAll(ctx)
	stopView()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return false, err
	}
	s.summary(out)
	return reconcile(c, o).print(out), nil
}

type member struct {
	settings

	// Guarded by supervisor.mu. Written only by run's goroutine, except leads and the
	// change from isStarting to isUp.
	state  string
	leads  bool // leads the stream of orders
	kills  int
	starts int
}

const (
	isStarting = "starting"
	isUp       = "up"
	isKilled   = "KILLED"
)

// supervisor keeps the processes running and kills some of them.
type supervisor struct {
	config
	dir    string
	begun  time.Time
	js     jetstream.JetStream
	engine *weirjs.Engine
	random *rand.Rand

	cluster   topology
	members   []*member // servers, then workers
	processes *procs.Supervisor

	mu      sync.Mutex
	arrived int64 // confirmed by the cluster
	repeats map[string]int
	now     counts
	looked  time.Time // the cluster's last answer
	inSync  bool      // all replicas are up to date
	failed  int       // processes that ended unkilled
	events  []string
	news    []string
}

type counts struct {
	waiting int64 // in the stream or a layer, or in flight
	dead    int64
	paid    int64
}

func newSupervisor(c config, dir string) (s *supervisor, err error) {
	s = &supervisor{config: c, dir: dir, begun: time.Now(), random: rand.New(rand.NewPCG(c.Seed, 29)), repeats: map[string]int{}}
	s.processes = procs.NewSupervisor(c.Limit + 5*time.Second)
	s.cluster, err = newTopology()
	if err != nil {
		return nil, err
	}
	set := settings{Dir: dir, Seed: c.Seed, Cluster: s.cluster, Client: exactlyonce.NewClient().String()}
	for _, name := range serverNames {
		set.Role, set.Name = roleServer, name
		s.members = append(s.members, &member{settings: set})
	}
	for i := range 3 {
		set.Role, set.Name = roleWorker, fmt.Sprintf("worker-%d", i+1)
		s.members = append(s.members, &member{settings: set})
	}
	s.js, err = s.cluster.dial()
	return s, err
}

// begin starts or restarts a member, without waiting for it.
func (s *supervisor) begin(m *member) error {
	ready, err := procs.RunSoon(s.processes, m.Name, m.settings)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.state = isStarting
	m.starts++
	start := m.starts
	if start > 1 {
		s.note("%s is started again", m.Name)
	}
	go func() { // ends with the process
		<-ready
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.starts == start && m.state == isStarting {
			m.state = isUp
		}
	}()
	return nil
}

// note records an event for the view. The caller holds mu.
func (s *supervisor) note(format string, args ...any) {
	s.news = append(s.news, fmt.Sprintf("%5.1fs  ", time.Since(s.begun).Seconds())+fmt.Sprintf(format, args...))
}

// runAll runs all processes until every order is done, and returns the end state.
func (s *supervisor) runAll(ctx context.Context) (o endState, err error) {
	for _, name := range bank.Providers {
		err := procs.Run(s.processes, name, settings{Role: roleProvider, Name: name, Dir: s.dir, Seed: s.Seed}, func([]byte) {})
		if err != nil {
			return o, err
		}
	}
	for _, m := range s.members {
		if m.Role == roleServer {
			if err := s.begin(m); err != nil {
				return o, err
			}
		}
	}
	if err := s.openEngine(ctx); err != nil {
		return o, err
	}
	defer s.engine.Close() //nolint:errcheck // everything that counts is confirmed
	for _, m := range s.members {
		if m.Role == roleWorker {
			if err := s.begin(m); err != nil {
				return o, err
			}
		}
	}
	working, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	published := make(chan error, 1)
	all.Go(func() { published <- s.publish(working) })
	all.Go(func() { s.watch(working) })
	if err := s.trouble(working); err != nil {
		return o, err
	}
	if err := <-published; err != nil {
		return o, err
	}
	if err := s.finish(working); err != nil {
		return o, err
	}
	o, err = readEndState(working, s.engine, s.dir)
	o.repeats = s.repeats // publish has ended
	return o, err
}

// openEngine opens the engine. It fails at once if a server does not start.
func (s *supervisor) openEngine(ctx context.Context) error {
	made := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		var err error
		s.engine, err = openEngine(ctx, s.js)
		made <- err
	}()
	for {
		select {
		case err := <-made:
			return err
		case <-time.After(50 * time.Millisecond):
			exits := s.processes.Exits()
			if len(exits) > 0 {
				cancel()
				<-made //nolint:errcheck // it was cancelled
				return exits[0].Err
			}
		}
	}
}

// publish puts the orders into their queue, spread over the duration. It repeats
// unconfirmed batches.
func (s *supervisor) publish(ctx context.Context) error {
	queue, _ := queuesOn(s.engine)
	const tick = 100 * time.Millisecond
	ticks := max(1, int64(s.Duration/tick))
	orders := bank.Orders(s.Seed, s.Orders)
	for n := int64(1); n <= ticks; n++ {
		var batch []message.Message[bank.Order]
		for _, o := range orders[s.Orders*(n-1)/ticks : s.Orders*n/ticks] {
			batch = append(batch, message.New(o, &message.Meta{ID: o.ID, Key: o.ID}, nil))
		}
		_, err := again(ctx, func(ctx context.Context) (any, error) {
			err := queue.PutAll(ctx, batch)
			if err != nil {
				s.noteRepeat(batch)
			}
			return nil, err
		})
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.arrived += int64(len(batch))
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Until(s.begun.Add(time.Duration(n) * tick))):
		}
	}
	return nil
}

func (s *supervisor) noteRepeat(batch []message.Message[bank.Order]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range batch {
		s.repeats[m.Meta().ID]++
	}
}

// trouble kills and restarts servers and workers until the duration has passed and each
// kind was killed at least once. It kills a server only while all are in sync: a cluster
// of three survives the loss of one.
func (s *supervisor) trouble(ctx context.Context) error {
	end := time.Now().Add(s.Duration)
	type start struct {
		m  *member
		at time.Time
	}
	var starts []start
	pause := func() time.Duration { return 300*time.Millisecond + time.Duration(s.random.IntN(900))*time.Millisecond }
	next := time.Now().Add(pause())
	goesOn := func() bool { return time.Now().Before(end) || s.killsOf(roleServer) == 0 || s.killsOf(roleWorker) == 0 }
	for goesOn() || len(starts) > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		if err := s.check(); err != nil {
			return err
		}
		for len(starts) > 0 && time.Now().After(starts[0].at) {
			if err := s.begin(starts[0].m); err != nil {
				return err
			}
			starts = starts[1:]
		}
		if now := time.Now(); now.After(next) && goesOn() {
			next = now.Add(pause())
			if m := s.victim(); m != nil {
				s.kill(m)
				starts = append(starts, start{m, now.Add(pause())})
				// keep starts in order of time
				for i := len(starts) - 1; i > 0 && starts[i].at.Before(starts[i-1].at); i-- {
					starts[i], starts[i-1] = starts[i-1], starts[i]
				}
			}
		}
	}
	return nil
}

// victim chooses a running member: half the time a server, if one may be killed, half of
// those the leader of the orders.
func (s *supervisor) victim() *member {
	role := roleWorker
	if s.random.IntN(2) == 0 {
		role = roleServer
	}
	leader := s.random.IntN(2) == 0
	s.mu.Lock()
	defer s.mu.Unlock()
	var up []*member
	for _, m := range s.members {
		if m.Role == role && m.state == isUp {
			up = append(up, m)
			if leader && m.leads {
				up = []*member{m}
				break
			}
		}
	}
	if len(up) == 0 || role == roleServer && (!s.inSync || s.isMute()) {
		return nil
	}
	return up[s.random.IntN(len(up))]
}

func (s *supervisor) kill(m *member) {
	s.mu.Lock()
	leads := ""
	if m.leads {
		leads = ", which led the orders"
	}
	s.note("%s is killed%s", m.Name, leads)
	m.state, m.leads = isKilled, false
	m.kills++
	if m.Role == roleServer {
		s.inSync = false
	}
	s.mu.Unlock()
	s.processes.Kill(m.Name)
}

// check fails if a provider or a server has ended by itself. It restarts workers that
// did, at most three times in all: a worker may end when the cluster does not answer for
// long.
func (s *supervisor) check() error {
	for _, exit := range s.processes.Exits() {
		i := slices.IndexFunc(s.members, func(m *member) bool { return m.Name == exit.Name && m.Role == roleWorker })
		s.failed++
		if i < 0 || s.failed > 3 {
			return exit.Err
		}
		if err := s.begin(s.members[i]); err != nil {
			return err
		}
	}
	return nil
}

// finish returns when each order is paid or a dead letter, and all servers are in sync.
func (s *supervisor) finish(ctx context.Context) error {
	for {
		s.mu.Lock()
		done := s.now.waiting == 0 && s.now.paid+s.now.dead >= s.Orders && s.inSync
		s.mu.Unlock()
		if done {
			return nil
		}
		if err := s.check(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *supervisor) watch(ctx context.Context) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, time.Second)
		err := s.look(within)
		cancel()
		s.mu.Lock()
		s.inSync = s.inSync && err == nil
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// isMute reports whether the cluster has not answered for a second, for example without a
// leader. The caller holds mu.
func (s *supervisor) isMute() bool { return !s.looked.IsZero() && time.Since(s.looked) > time.Second }

// look counts the orders along their path. An order is put into the next queue before it
// leaves the previous one, so it may be counted twice but is never missed.
func (s *supervisor) look(ctx context.Context) error {
	var now counts
	kills := s.killsOf(roleServer)
	inSync, leader := true, ""
	str, err := s.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	if c := str.CachedInfo().Cluster; c == nil || len(c.Replicas) != replicas-1 {
		inSync = false
	} else {
		leader = c.Leader
		for _, r := range c.Replicas {
			inSync = inSync && r.Current && !r.Offline
		}
	}
	orders, payments := queuesOn(s.engine)
	c, err := orders.Counts(ctx)
	if err != nil {
		return err
	}
	now.waiting, now.dead = int64(c.Waiting+c.Retrying), int64(c.Dead)
	c, err = payments.Counts(ctx)
	if err != nil {
		return err
	}
	now.paid = int64(c.Waiting)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.looked = now, time.Now()
	for _, m := range s.members {
		m.leads = m.Name == leader && m.state == isUp
		inSync = inSync && (m.Role != roleServer || m.state == isUp)
	}
	s.inSync = inSync && kills == s.killsLocked(roleServer) // no server was killed meanwhile
	return nil
}

func (s *supervisor) killsOf(role string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killsLocked(role)
}

func (s *supervisor) killsLocked(role string) (n int) {
	for _, m := range s.members {
		if m.Role == role {
			n += m.kills
		}
	}
	return n
}

func (s *supervisor) summary(out io.Writer) {
	var each []string
	for _, m := range s.members {
		each = append(each, fmt.Sprintf("%s %d", m.Name, m.kills))
	}
	fmt.Fprintf(out, `
%s orders in %.1fs, trouble of seed %d
  kills of servers            %6s   %s
  kills of workers            %6s   %s
`, show.Count(s.Orders), time.Since(s.begun).Seconds(), s.Seed,
		show.Count(s.killsOf(roleServer)), strings.Join(each[:3], ", "), show.Count(s.killsOf(roleWorker)), strings.Join(each[3:], ", "))
}
