package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// outages are the outages of the simulated service, and checks of how a fleet obeys them.
type outages struct {
	*testing.T
	until  time.Duration   // when the service works again
	probes []time.Duration // ends of the probes, also of processes that were killed
	ramps  []*ramp
	pauses map[string]time.Duration // ends of the pauses, by their reasons
	trips  int
}

// ramp is a ramp of the fleet, from the answer to the probe on.
type ramp struct {
	begun, over time.Duration
	target      float64
	started     int // calls of all processes
}

// due returns how many calls a ramp allows in a time.
func due(target float64, over, t time.Duration) float64 {
	x := max(0, t).Seconds()
	return target * x * x / (2 * over.Seconds())
}

// breaker is the state of the service as a simulated process obeys it.
type breaker struct {
	health  fleet.Health
	changes int           // of health
	losses  int           // in a row
	read    *fleet.Record // the latest change that it has read
	paused  *fleet.Record // that it has read
	since   int64         // number of the latest change that it had read when it changed health by itself

	// Of a probe under way; probe is 0 if there is none.
	probe      time.Duration // its end
	probeBegun time.Duration
	probeOf    int // changes then

	// On the ramp.
	due     float64       // calls that are allowed
	dueAt   time.Duration // when due was computed, from the start of the ramp
	onRamp  float64       // calls that have started
	isStill bool          // it has started a call since the faults have ended
}

const (
	simTarget = 40
	simOver   = 4 * time.Second
)

func (s *sim) mono(p *process) time.Duration { return s.instant(p).Mono }

// describe adds the state of the breaker to the local state of a step.
func (s *sim) describe(p *process, l *fleet.Local) {
	if s.outages == nil {
		return
	}
	l.Waits = p.wants > 0
	l.Probing = s.isProbing(p)
	l.Pace = 10
}

func (s *sim) isProbing(p *process) bool {
	return p.probe > s.t && s.t-p.probeBegun < fleet.ProbeTime
}

// adopt makes a process obey the health that its step has read.
func (s *sim) adopt(p *process) {
	if s.outages == nil {
		return
	}
	read := s.engine.table.Health
	if read != nil && read.Number >= p.number() {
		p.breaker.read = read
	}
	p.paused = s.engine.table.Pause
	h, news := p.machine.Adopt(s.mono(p))
	if news == fleet.NoNews {
		return
	}
	s.change(p, h)
	if news == fleet.OldState { // it has made its first call of the ramp
		p.onRamp = 1
	}
	if read != nil && read.State == fleet.Held && h.State == fleet.Up { // the hold of processes that were killed
		p.since = read.Number
	}
}

// number returns the number of the latest change that a process has read.
func (b *breaker) number() int64 {
	if b.read == nil {
		return 0
	}
	return b.read.Number
}

// change changes the health that a process obeys.
func (s *sim) change(p *process, h fleet.Health) {
	p.health = h
	p.changes++
	p.losses = 0
	p.due = 0
	p.onRamp = 0
	p.dueAt = max(0, s.mono(p)-(h.Until-h.Over))
	p.next = min(p.next, s.t+2*tick)
}

// propose changes the health by what a process has found, or by the order of a person.
func (s *sim) propose(p *process, h fleet.Health, isOrder bool) {
	s.change(p, h)
	p.since = p.number()
	p.machine.Propose(s.instant(p), h, isOrder)
}

// judge judges the calls of a process that have ended.
func (s *sim) judge(p *process) {
	if s.outages == nil {
		return
	}
	now := s.mono(p)
	s.accrue(p)
	if p.probe > 0 && p.probe <= s.t {
		isLost := p.probe < s.outages.until
		isCurrent := p.probeOf == p.changes
		p.probe = 0
		switch {
		case !isCurrent:
		case isLost:
			s.propose(p, fleet.Health{State: fleet.Down, Why: "probe", Until: now + 500*time.Millisecond}, false)
		default:
			s.ramps = append(s.ramps, &ramp{begun: s.t, over: simOver, target: simTarget})
			why := fmt.Sprint(len(s.ramps) - 1)
			s.propose(p, fleet.Health{State: fleet.Ramping, Why: why, Until: now + simOver, Over: simOver, Target: simTarget}, false)
		}
	}
	for _, end := range p.calls {
		switch {
		case end > s.t:
		case end < s.outages.until:
			p.losses++
		default:
			p.losses = 0
		}
	}
	state := s.state(p)
	if p.losses >= 3 && (state == fleet.Up || state == fleet.Ramping) {
		s.trips++
		s.propose(p, fleet.Health{State: fleet.Down, Why: "trip", Until: now + 250*time.Millisecond}, false)
	}
}

// state returns the state that a process obeys.
func (s *sim) state(p *process) fleet.State {
	if p.health.State == "" || p.health.State == fleet.Ramping && s.mono(p) >= p.health.Until {
		return fleet.Up
	}
	return p.health.State
}

// mayStart reports whether the service lets a process start another call, and checks that
// the process has not read otherwise.
func (s *sim) mayStart(p *process) bool {
	if s.outages == nil {
		return true
	}
	now := s.mono(p)
	if now < p.machine.Pause().Until {
		return false
	}
	switch s.state(p) {
	case fleet.Down:
		if now >= p.health.Until && p.machine.MayProbe(s.instant(p)) && !s.isProbing(p) {
			s.startProbe(p)
		}
		return false
	case fleet.Held:
		return false
	case fleet.Ramping:
		if !s.isDue(p) {
			return false
		}
	case fleet.Up:
	}
	read := p.breaker.read
	isDown := read != nil && (read.State == fleet.Down || read.State == fleet.Held) && read.Number > p.since && read.By != p.id
	require.False(s, isDown, "process %s has read %+v", p.id, read)
	if read != nil && read.State == fleet.Ramping && s.state(p) == fleet.Up && read.Number > p.since {
		r := s.rampOf(read.Why)
		require.GreaterOrEqual(s, s.t, r.begun+r.over, "process %s before the end of ramp %s", p.id, read.Why)
	}
	s.checkPause(p)
	p.isStill = true
	return true
}

// checkPause checks that a process starts no call in a pause that it has read.
func (s *sim) checkPause(p *process) {
	if p.paused != nil {
		require.GreaterOrEqual(s, s.t, s.pauses[p.paused.Why], "process %s in pause %s", p.id, p.paused.Why)
	}
}

// startProbe starts a probe, and checks that it is the only one.
func (s *sim) startProbe(p *process) {
	for _, end := range s.probes {
		require.LessOrEqual(s, end, s.t, "process %s probes beside another one", p.id)
	}
	s.checkPause(p)
	p.probe = s.call(p)
	p.probeBegun = s.t
	p.probeOf = p.changes
	s.probes = append(s.probes, min(p.probe, s.t+fleet.ProbeTime))
}

// isDue reports whether the ramp allows a process another call, and checks the load of
// the fleet.
func (s *sim) isDue(p *process) bool {
	if p.onRamp > p.due {
		return false
	}
	p.onRamp++
	r := s.rampOf(p.health.Why)
	r.started++
	require.LessOrEqual(s, float64(r.started), due(r.target, r.over, s.t-r.begun)+float64(s.made), "ramp %s after %v", p.health.Why, s.t-r.begun)
	return true
}

// rampOf returns the ramp of a reason.
func (s *sim) rampOf(why string) *ramp {
	i, err := strconv.Atoi(why)
	require.NoError(s, err)
	return s.ramps[i]
}

// accrue adds the process's part of the ramp since the last tick.
func (s *sim) accrue(p *process) {
	if s.state(p) != fleet.Ramping {
		return
	}
	part := float64(p.machine.Share(s.instant(p))) / float64(s.limit)
	at := max(0, s.mono(p)-(p.health.Until-p.health.Over))
	p.due += part * (due(p.health.Target, p.health.Over, at) - due(p.health.Target, p.health.Over, p.dueAt))
	p.dueAt = at
}

// pause makes the service demand a pause from a process.
func (s *sim) pause(p *process, d time.Duration) {
	why := fmt.Sprint("pause ", len(s.pauses))
	s.pauses[why] = s.t + d
	p.machine.ProposePause(fleet.Pause{Until: s.mono(p) + d, Why: why})
}

// disturbService makes faults of the service, and orders of people.
func (s *sim) disturbService() {
	if s.outages.until < s.t && s.IntN(60) == 0 {
		s.outages.until = s.t + s.upTo(8*time.Second)
	}
	if len(s.processes) == 0 {
		return
	}
	p := s.processes[s.IntN(len(s.processes))]
	if p.frozen > s.t {
		return
	}
	switch s.IntN(400) {
	case 0:
		s.propose(p, fleet.Health{State: fleet.Held, Why: "hold"}, true)
	case 1, 2, 3, 4, 5, 6:
		s.resume(p)
	case 7, 8:
		s.pause(p, s.between(time.Second, 5*time.Second))
	}
}

// resume is the order of a person to try the service, as a process carries it out.
func (s *sim) resume(p *process) {
	state := s.state(p)
	if state == fleet.Held || state == fleet.Down {
		s.propose(p, fleet.Health{State: fleet.Down, Why: "resume", Until: s.mono(p)}, true)
	}
}

// newOutageSim returns a fleet whose service has outages.
func newOutageSim(t *testing.T, seed uint64, limit int, longest time.Duration, n int) *sim {
	t.Helper()
	s := newSim(seed, limit, longest, n)
	s.outages = &outages{T: t, pauses: map[string]time.Duration{}}
	return s
}

// The state of the service, under random faults: a process that has read that the service
// is down or held starts no ordinary call, at most one process probes, and the load on
// the ramp is at most the ramp and one call for each process. When the faults have ended,
// all processes make calls.
func TestMachine_RandomOutages(t *testing.T) {
	trips, probes, ramps := 0, 0, 0
	for seed := range uint64(seeds(t, schedules/2)) {
		r := rand.New(rand.NewPCG(seed, 4))
		limit := 1 + r.IntN(40)
		longest := []time.Duration{500 * time.Millisecond, 3 * time.Second, 12 * time.Second}[r.IntN(3)]
		s := newOutageSim(t, seed, limit, longest, 2+r.IntN(6))
		s.losesAnswers = true
		every := []int{0, 600, 60}[seed%3]
		s.run(40*time.Second, func() {
			if every > 0 && s.t > 3*time.Second && s.IntN(every) == 0 {
				s.failoverWithFaults()
			}
			s.disturb()
			s.disturbService()
		})
		require.LessOrEqual(t, s.most, limit, "seed %d", seed)
		s.heal(seed)
		trips += s.trips
		probes += len(s.probes)
		ramps += len(s.ramps)
	}
	t.Logf("%d trips, %d probes, %d ramps", trips, probes, ramps)
}

// heal ends the faults, and checks that all processes make calls.
func (s *sim) heal(seed uint64) {
	s.Helper()
	s.losesAnswers = false
	s.outages.until = 0
	s.add(s.limit)
	for _, p := range s.processes {
		s.thaw(p)
		p.isolated = min(p.isolated, s.t)
		s.want(p, s.limit)
	}
	s.run(s.t+fleet.Lease, nil) // all have read a hold
	for _, p := range s.processes {
		s.resume(p)
	}
	s.run(s.t+3*(fleet.Lease+s.longest)+2*fleet.ProbeTime, nil)
	for _, p := range s.processes {
		p.isStill = false
	}
	turn := fleet.Lease + s.longest + 2*time.Second // passing a permit on takes two seconds
	s.run(s.t+time.Duration(len(s.processes))*turn, nil)
	for _, p := range s.processes {
		require.Equal(s, fleet.Up, s.state(p), "seed %d: process %s: %+v", seed, p.id, p.health)
		require.True(s, p.isStill, "seed %d: process %s makes no calls: %+v", seed, p.id, p.health)
	}
}

// A process that has the right to probe is killed, before its probe or during it. Another
// process probes when the lease of the killed one and the longest call have ended, or the
// lease and the probe if a call takes longer.
func TestMachine_ProberIsKilled(t *testing.T) {
	for seed := range uint64(60) {
		longest := []time.Duration{time.Second, 4 * time.Second, 30 * time.Second}[seed%3]
		s := newOutageSim(t, seed, 10, longest, 3)
		s.run(5*time.Second, nil)
		s.outages.until = time.Hour
		var prober *process
		s.within(t, 20*time.Second+longest, func() bool {
			for _, p := range s.processes {
				if p.machine.MayProbe(s.instant(p)) && (seed%2 == 0 || s.isProbing(p)) {
					prober = p
				}
			}
			return prober != nil
		})
		s.kill(prober)
		before := len(s.probes)
		s.outages.until = s.t
		ends := s.t + fleet.Lease + min(longest, fleet.ProbeTime)
		s.within(t, ends-s.t+2*time.Second, func() bool { return len(s.probes) > before })
		s.heal(seed)
	}
}

// A hold ends with the last process, also if all of them were killed: the first process
// that is left alone after them may start calls. A process that has met another one keeps
// the hold.
func TestMachine_HoldOfKilledProcesses(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		t.Run(fmt.Sprint("keeps=", keeps), func(t *testing.T) {
			s := newOutageSim(t, 1, 10, time.Second, 3)
			s.run(5*time.Second, nil)
			s.propose(s.processes[0], fleet.Health{State: fleet.Held, Why: "hold"}, true)
			s.run(s.t+5*time.Second, nil)
			for _, p := range s.processes {
				require.Equal(t, fleet.Held, s.state(p))
			}
			if keeps {
				s.add(10)
				s.run(s.t+5*time.Second, nil)
			}
			for _, p := range slices.Clone(s.processes[:3]) {
				s.kill(p)
			}
			if !keeps {
				s.add(10)
			}
			s.run(s.t+3*(fleet.Lease+s.longest), nil)
			left := s.processes[0]
			require.Equal(t, keeps, s.state(left) == fleet.Held)
			require.Equal(t, !keeps, len(left.calls) > 0)
		})
	}
}

// After a lost probe another process probes, because the first one may be the cause.
func TestMachine_LostProbePassesOn(t *testing.T) {
	s := newOutageSim(t, 1, 10, 300*time.Millisecond, 3)
	s.run(5*time.Second, nil)
	s.outages.until = time.Hour
	probers := map[string]int{}
	last := ""
	s.run(60*time.Second, func() {
		for _, p := range s.processes {
			if p.probe > 0 && p.probeBegun == s.t-tick && p.id != last {
				probers[p.id]++
				last = p.id
			}
		}
	})
	require.Len(t, probers, 3, "%v of %d probes", probers, len(s.probes))
	total := 0
	for _, n := range probers {
		total += n
	}
	require.Len(t, s.probes, total, "no process makes two successive probes")
}
