package fleet_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// schedules is how many random schedules a plain run simulates. The environment variable
// WEIR_FLEET_SCHEDULES has another number, such as 10000.
const schedules = 40

const tick = 50 * time.Millisecond

// engine is a record with a version. A failover replaces the record by an earlier one.
type engine struct {
	table     fleet.Table
	version   int64
	downUntil time.Duration
	history   []snapshot // of the last seconds
}

type snapshot struct {
	at      time.Duration
	table   fleet.Table
	version int64
}

// process is a simulated process. Its clocks differ from the clocks of others by up to a
// minute.
type process struct {
	id         string
	machine    *fleet.Machine
	mono, wall time.Duration // how far its clocks are ahead of the simulated time

	calls     []time.Duration // ends of its calls
	wants     int             // calls that it would make at the same time
	frozen    time.Duration   // until when it is paused or suspended
	suspended bool
	wrote     time.Duration // its last write
	isolated  time.Duration // until when it does not reach the engine
	next      time.Duration // its next step
	started   int64         // its calls

	// Of the step under way: its write arrives later than its read.
	stepping bool
	arrives  time.Duration
	read     int64
	table    fleet.Table

	// Of the step whose table was written: the answer arrives later.
	answering bool
	answers   time.Duration
	written   int64

	breaker
}

// sim is a simulated fleet, its engine and the service that it calls.
type sim struct {
	*rand.Rand
	t         time.Duration
	limit     int
	longest   time.Duration
	engine    engine
	processes []*process
	service   []time.Duration // ends of the calls, also of processes that were killed
	made      int             // processes so far
	most      int             // calls at the same time

	losesAnswers bool // the engine loses some answers, and delays others

	*outages // nil if the service is always up
}

func newSim(seed uint64, limit int, longest time.Duration, n int) *sim {
	s := &sim{Rand: rand.New(rand.NewPCG(seed, 1)), limit: limit, longest: longest}
	for range n {
		s.add(limit)
	}
	return s
}

func (s *sim) between(a, b time.Duration) time.Duration { return a + s.upTo(b-a) }

func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.Int64N(int64(d) + 1)) }

// add starts a process.
func (s *sim) add(wants int) *process {
	s.made++
	id := fmt.Sprintf("%03d", s.made)
	p := &process{
		id: id, machine: fleet.New(id), mono: s.upTo(time.Hour), wall: s.between(-time.Minute, time.Minute), wants: wants,
		next: s.t + s.upTo(fleet.Period),
	}
	s.processes = append(s.processes, p)
	return p
}

// want changes how many calls a process would make. More calls are a reason for a step.
func (s *sim) want(p *process, n int) {
	if n > p.wants {
		p.next = min(p.next, s.t)
	}
	p.wants = n
}

func (s *sim) kill(p *process) {
	s.processes = slices.DeleteFunc(s.processes, func(x *process) bool { return x == p })
}

// freeze pauses a process. A suspended machine has a monotonic clock that stops.
func (s *sim) freeze(p *process, d time.Duration, suspends bool) {
	if p.frozen > s.t {
		return
	}
	p.frozen, p.suspended = s.t+d, suspends
	if suspends {
		p.mono -= d // it has the same time again when it continues
	}
}

// thaw ends a freeze.
func (s *sim) thaw(p *process) {
	left := max(0, p.frozen-s.t)
	p.frozen -= left
	if p.suspended {
		p.mono += left
	}
}

// failover makes the engine unavailable for a time, and then lose its last writes.
func (s *sim) failover(lost, outage time.Duration) {
	s.engine.downUntil = s.t + outage
	for _, h := range slices.Backward(s.engine.history) {
		s.engine.table, s.engine.version = h.table, h.version
		if h.at <= s.t-lost {
			break
		}
	}
}

func (s *sim) instant(p *process) fleet.Instant {
	return fleet.Instant{Mono: s.t + p.mono, Wall: s.t + p.wall}
}

func (s *sim) run(until time.Duration, each func()) {
	for ; s.t < until; s.t += tick {
		if each != nil {
			each()
		}
		s.engine.history = append(s.engine.history, snapshot{s.t, s.engine.table, s.engine.version})
		if len(s.engine.history) > 200 {
			s.engine.history = s.engine.history[100:]
		}
		for _, p := range s.processes {
			if p.frozen <= s.t {
				s.advance(p)
			}
		}
		s.service = slices.DeleteFunc(s.service, func(end time.Duration) bool { return end <= s.t })
		s.most = max(s.most, len(s.service))
	}
}

func (s *sim) advance(p *process) {
	s.judge(p)
	p.calls = slices.DeleteFunc(p.calls, func(end time.Duration) bool { return end <= s.t })
	if p.stepping && p.arrives <= s.t {
		s.write(p)
	}
	if p.answering && p.answers <= s.t {
		p.answering = false
		s.commit(p, p.written)
	}
	if !p.stepping && !p.answering && p.next <= s.t {
		s.begin(p)
	}
	for len(p.calls) < min(p.wants, p.machine.Share(s.instant(p))) && s.mayStart(p) {
		s.call(p)
	}
}

// call starts a call of a process, and returns its end.
func (s *sim) call(p *process) (end time.Duration) {
	end = s.t + s.between(tick, s.longest)
	p.calls = append(p.calls, end)
	p.started++
	s.service = append(s.service, end)
	return end
}

func (s *sim) reaches(p *process) bool { return p.isolated <= s.t && s.engine.downUntil <= s.t }

// begin reads the table. The process may be frozen between its read and its write.
func (s *sim) begin(p *process) {
	period := fleet.Period
	if p.wants == 0 {
		period = fleet.IdlePeriod
	}
	p.next = s.t + period
	if !s.reaches(p) {
		p.machine.Fail()
		return
	}
	now := s.instant(p)
	start := now
	start.Mono -= s.upTo(100 * time.Millisecond)
	local := fleet.Local{Limit: s.limit, Running: len(p.calls), Need: max(p.wants, len(p.calls)), Longest: s.longest, Started: p.started}
	s.describe(p, &local)
	p.read, p.table = s.engine.version, p.machine.Begin(start, now, s.engine.version, s.engine.table, local)
	s.adopt(p)
	p.stepping, p.arrives = true, s.t
	if s.IntN(8) == 0 {
		p.arrives += s.upTo(100 * time.Millisecond)
		return
	}
	s.write(p)
}

// write replaces the table if no other process has done so since the read. The answer
// may be lost, or late.
func (s *sim) write(p *process) {
	p.stepping = false
	if !s.reaches(p) {
		p.machine.Fail()
		return
	}
	if s.engine.version != p.read {
		p.next = s.t + s.upTo(4*tick) // begins again
		return
	}
	s.engine.table, s.engine.version = p.table, s.engine.version+1
	p.wrote = s.t
	if s.losesAnswers && s.IntN(500) == 0 {
		p.machine.Fail()
		return
	}
	if s.losesAnswers && s.IntN(15) == 0 {
		p.answering, p.answers, p.written = true, s.t+s.upTo(3*time.Second), s.engine.version
		return
	}
	s.commit(p, s.engine.version)
}

// commit ends a step of which the process has the answer.
func (s *sim) commit(p *process, version int64) {
	p.machine.Commit(s.instant(p), version)
	if p.machine.IsPending() {
		p.next = min(p.next, s.t+fleet.PendingPeriod)
	}
}

func (s *sim) shares() (all map[string]int, sum int) {
	all = map[string]int{}
	for _, p := range s.processes {
		all[p.id] = p.machine.Share(s.instant(p))
		sum += all[p.id]
	}
	return all, sum
}

// seeds returns how many seeds a test of random schedules has.
func seeds(t *testing.T, plain int) int {
	t.Helper()
	text := os.Getenv("WEIR_FLEET_SCHEDULES")
	if text == "" {
		return plain
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Law B5, under random faults: the service never counts more calls than the limit. When
// the faults have ended, all permits are in use, in equal parts.
func TestMachine_RandomSchedules(t *testing.T) {
	n := seeds(t, schedules)
	most := 0.0
	for seed := range uint64(n) {
		s, limit := schedule(seed)
		require.LessOrEqual(t, s.most, limit, "seed %d", seed)
		most = max(most, float64(s.most)/float64(limit))
		calm(t, s, seed)
	}
	t.Logf("%d schedules, at most %.2f of the limit", n, most)
}

// schedule runs a fleet with the faults of a seed for half a minute.
func schedule(seed uint64) (s *sim, limit int) {
	r := rand.New(rand.NewPCG(seed, 2))
	limit = 1 + r.IntN(60)
	n := 2 + r.IntN(6)
	if seed%10 == 0 {
		n = 2 + r.IntN(49)
	}
	longest := []time.Duration{500 * time.Millisecond, 3 * time.Second, 12 * time.Second}[r.IntN(3)]
	s = newSim(seed, limit, longest, n)
	s.losesAnswers = true
	every := []int{0, 600, 60}[seed%3] // ticks between two failovers (half a minute, three seconds), or 0 for no failover
	s.run(30*time.Second, func() {
		if every > 0 && s.t > 3*time.Second && s.IntN(every) == 0 {
			s.failoverWithFaults()
		}
		s.disturb()
	})
	return s, limit
}

// Law B5, under faults in the order in which they do most harm: some processes do not
// reach the engine for a few seconds, or their answers are late; another process grows
// without their notice; a failover loses the growth; the process that has grown is killed
// or cut off.
func TestMachine_GrowthWithoutNotice(t *testing.T) {
	n := seeds(t, 10*schedules)
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 9))
		longest := []time.Duration{2 * time.Second, 12 * time.Second, 30 * time.Second}[r.IntN(3)]
		s := newSim(seed, 10, longest, 2+r.IntN(3))
		s.losesAnswers = true
		for _, p := range s.processes {
			p.wants = 0
		}
		s.run(4*time.Second+s.upTo(time.Second), nil)
		for range 3 {
			s.growWithoutNotice()
			s.run(s.t+s.between(time.Second, 25*time.Second), nil)
			require.LessOrEqual(t, s.most, 10, "seed %d", seed)
		}
	}
}

func (s *sim) growWithoutNotice() {
	begin := s.t
	for _, p := range s.processes {
		switch s.IntN(4) {
		case 0:
			p.isolated = s.t + s.between(2*time.Second, 5*time.Second)
		case 1:
			s.freeze(p, s.between(2*time.Second, 5*time.Second), s.IntN(2) == 0)
		}
	}
	s.run(s.t+s.upTo(300*time.Millisecond), nil)
	if len(s.processes) > 0 {
		s.want(s.processes[s.IntN(len(s.processes))], 10)
	}
	s.run(s.t+s.between(1300*time.Millisecond, 4500*time.Millisecond), nil)
	outage := []time.Duration{0, 0, 300 * time.Millisecond, 2 * time.Second}[s.IntN(4)]
	s.failover(s.between(time.Second, s.t-begin+200*time.Millisecond), outage)
	for _, p := range slices.Clone(s.processes) {
		isBusy := len(p.calls) > 0
		switch {
		case isBusy && s.IntN(3) == 0, s.IntN(6) == 0:
			s.kill(p)
		case isBusy && s.IntN(3) == 0:
			p.isolated = s.t + s.between(2*time.Second, 30*time.Second)
		default:
			s.want(p, s.IntN(2)*10)
		}
	}
	if s.IntN(2) == 0 {
		s.add(10)
	}
}

// failoverWithFaults makes a failover that loses writes, and disturbs some processes at
// the same time, because the protocol is most likely to fail then.
func (s *sim) failoverWithFaults() {
	lost := s.between(tick, []time.Duration{fleet.Period, 3 * time.Second}[s.IntN(2)])
	s.failover(lost, s.upTo([]time.Duration{0, fleet.Period, 8 * time.Second}[s.IntN(3)]))
	odds := []int{3, 6, 12}[s.IntN(3)]
	for _, p := range slices.Clone(s.processes) {
		switch s.IntN(odds) {
		case 0:
			s.kill(p)
		case 1:
			s.freeze(p, s.between(0, 8*time.Second), s.IntN(2) == 0)
		case 2:
			p.isolated = s.t + s.between(0, 8*time.Second)
		}
	}
	for range s.IntN(3) {
		s.add(s.limit)
	}
}

// disturb makes a few faults a second in the whole fleet.
func (s *sim) disturb() {
	if s.IntN(40) == 0 && len(s.processes) < 50 {
		s.add(s.IntN(s.limit + 1))
	}
	if len(s.processes) == 0 {
		return
	}
	p := s.processes[s.IntN(len(s.processes))]
	switch s.IntN(60) {
	case 0, 4, 5, 6, 7:
		s.want(p, s.IntN(2)*s.IntN(2*s.limit))
	case 1:
		s.kill(p)
	case 2:
		s.freeze(p, s.between(0, 15*time.Second), s.IntN(2) == 0)
	case 3:
		p.isolated = s.t + s.between(0, 12*time.Second)
	}
}

// calm ends the faults, and checks that the permits get where they are needed.
func calm(t *testing.T, s *sim, seed uint64) {
	t.Helper()
	s.losesAnswers = false
	for _, p := range s.processes {
		s.thaw(p)
		p.isolated = min(p.isolated, s.t)
		s.want(p, []int{0, s.limit}[s.IntN(2)])
	}
	s.add(s.limit)
	s.run(s.t+3*(fleet.Lease+s.longest)+5*time.Second, nil)
	shares, sum := s.shares()
	require.LessOrEqual(t, s.most, s.limit, "seed %d", seed)
	busy := 0
	for _, p := range s.processes {
		if p.wants > 0 {
			busy++
		}
	}
	if busy <= s.limit { // otherwise permits move from process to process all the time
		require.Equal(t, s.limit, sum, "seed %d: %v", seed, shares)
	}
	for _, p := range s.processes {
		share := shares[p.id]
		if p.wants == 0 {
			require.Zero(t, share, "seed %d: idle process %s", seed, p.id)
		} else {
			require.GreaterOrEqual(t, share, s.limit/busy, "seed %d: process %s", seed, p.id)
			require.LessOrEqual(t, share, s.limit/busy+1, "seed %d: process %s", seed, p.id)
		}
	}
}

// within runs the simulation until a condition is met, and returns how long that took.
func (s *sim) within(t *testing.T, most time.Duration, condition func() bool) time.Duration {
	t.Helper()
	begin := s.t
	for !condition() {
		require.Less(t, s.t-begin, most)
		s.run(s.t+tick, nil)
	}
	return s.t - begin
}

func TestMachine_FreePermitsMoveWithinTwoSeconds(t *testing.T) {
	for seed := range uint64(50) {
		s := newSim(seed, 50, 100*time.Millisecond, 2)
		busy, idle := s.processes[0], s.processes[1]
		idle.wants = 0
		s.run(10*time.Second, nil)
		shares, _ := s.shares()
		require.Equal(t, map[string]int{busy.id: 50, idle.id: 0}, shares)
		s.want(busy, 0)
		s.want(idle, 50)
		s.within(t, 2*time.Second+s.longest, func() bool { return idle.machine.Share(s.instant(idle)) == 50 })
	}
}

func TestMachine_NewcomerGetsAPermit(t *testing.T) {
	for seed := range uint64(50) {
		s := newSim(seed, 10, 100*time.Millisecond, 5)
		s.run(10*time.Second, nil)
		p := s.add(1)
		s.within(t, fleet.Period+fleet.Settling+2*time.Second, func() bool { return len(p.calls) == 1 })
		require.LessOrEqual(t, s.most, 10)
	}
}

func TestMachine_MoreProcessesThanPermits(t *testing.T) {
	s := newSim(1, 3, 100*time.Millisecond, 10)
	served := map[string]bool{}
	s.run(60*time.Second, func() {
		for _, p := range s.processes {
			if len(p.calls) > 0 {
				served[p.id] = true
			}
		}
	})
	require.Len(t, served, 10)
	require.LessOrEqual(t, s.most, 3)
}

func TestMachine_KilledProcessCountsUntilItsCallsHaveEnded(t *testing.T) {
	s := newSim(1, 50, 3*time.Second, 2)
	s.run(10*time.Second, nil)
	left, killed := s.processes[0], s.processes[1]
	s.kill(killed)
	took := s.within(t, fleet.Lease+s.longest+2*time.Second, func() bool { return left.machine.Share(s.instant(left)) == 50 })
	require.Greater(t, took, fleet.Lease+s.longest-fleet.Period)
}

func TestMachine_SuspendedProcessHasNoShare(t *testing.T) {
	m := fleet.New("a")
	now := fleet.Instant{}
	table, version := fleet.Table{}, int64(0)
	for range 4 {
		table = m.Begin(now, now, version, table, fleet.Local{Limit: 10, Need: 10})
		version++
		m.Commit(now, version)
		now.Mono += time.Second
		now.Wall += time.Second
	}
	require.Equal(t, 10, m.Share(now))
	require.Zero(t, m.Share(fleet.Instant{Mono: now.Mono, Wall: now.Wall + fleet.Lease}))
	require.Zero(t, m.Share(fleet.Instant{Mono: now.Mono + fleet.Lease, Wall: now.Wall}))
}

func TestMachine_ShareIsRecordedUntilItsCallsHaveEnded(t *testing.T) {
	m := fleet.New("a")
	now := fleet.Instant{}
	table, version := fleet.Table{}, int64(0)
	step := func(l fleet.Local) {
		table = m.Begin(now, now, version, table, l)
		version++
		m.Commit(now, version)
		now.Mono += time.Second
		now.Wall += time.Second
	}
	for range 4 {
		step(fleet.Local{Limit: 10, Need: 10})
	}
	step(fleet.Local{Limit: 10, Running: 7})
	require.Zero(t, m.Share(now), "it starts no further call")
	require.Equal(t, 7, table.Members["a"].Share)
	step(fleet.Local{Limit: 10})
	require.Zero(t, table.Members["a"].Share)
	require.Empty(t, slices.Collect(maps.Keys(m.Leave(table).Members)))
}

// Law B5: the engine loses the growth of a process that was killed, and another process
// has seen the growth. Then neither this process nor a new one grows.
func TestMachine_LostGrowthOfAKilledProcess(t *testing.T) {
	const longest = 12 * time.Second
	for seed := range uint64(40) {
		s := newSim(seed, 10, longest, 2)
		witness, killed := s.processes[0], s.processes[1]
		killed.wants = 0
		s.run(10*time.Second, nil)
		require.Equal(t, 10, witness.machine.Share(s.instant(witness)))
		witness.wants = 5
		s.run(25*time.Second, nil)
		before := s.t
		s.want(killed, 5)
		s.within(t, 20*time.Second, func() bool { return len(killed.calls) == 5 && witness.wrote > killed.wrote })
		s.kill(killed)
		if seed%2 == 0 {
			witness.wants = 10
		} else {
			s.add(5)
		}
		s.failover(s.t-before+2*tick, time.Duration(seed%3)*time.Second)
		s.run(s.t+10*time.Second, nil)
		require.LessOrEqual(t, s.most, 10, "seed %d", seed)
		s.within(t, 40*time.Second, func() bool {
			_, sum := s.shares()
			return sum == 10
		})
	}
}

// Law B5: the time of an entry of another process counts from the end of the read, and a
// process's own lease from the start of its step.
func TestMachine_SlowRead(t *testing.T) {
	m := fleet.New("a")
	table := fleet.Table{Members: map[string]fleet.Member{"b": {Share: 10, Beat: 1, Longest: time.Second}}}
	at := func(d time.Duration) fleet.Instant { return fleet.Instant{Mono: d, Wall: d} }
	version := int64(1)
	step := func(start, now time.Duration) {
		table = m.Begin(at(start), at(now), version, table, fleet.Local{Limit: 10, Need: 10})
		version++
		m.Commit(at(now), version)
	}
	step(0, 1500*time.Millisecond)
	require.True(t, m.IsLeased(at(4*time.Second)))
	require.False(t, m.IsLeased(at(fleet.Lease)))
	for now := 2 * time.Second; now <= 1500*time.Millisecond+fleet.Lease+time.Second; now += 500 * time.Millisecond {
		step(now, now)
		require.Contains(t, table.Members, "b")
	}
	step(8*time.Second, 8*time.Second)
	require.NotContains(t, table.Members, "b")
}

// Law B5: a failover that is shorter than a step loses the growth of a process, and
// another process makes the next step, which has not seen the lost growth.
func TestMachine_FailoverShorterThanAStep(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(seed, 10, 12*time.Second, 2)
		first, second := s.processes[0], s.processes[1]
		first.wants, second.wants = 0, 0
		s.run(5*time.Second, nil)
		begin := s.t
		s.want(first, 10)
		s.within(t, 5*time.Second, func() bool { return len(first.calls) == 10 })
		s.want(second, 10)
		first.next = s.t + 10*tick // the other one is faster
		s.failover(s.t-begin+2*tick, 0)
		s.run(s.t+5*time.Second, nil)
		require.LessOrEqual(t, s.most, 10, "seed %d", seed)
	}
}

// A killed process does not write again. Growth waits only a short time for its notice,
// because another process can vouch for it.
func TestMachine_GrowthAfterAKill(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(seed, 10, 12*time.Second, 3)
		killed, idle, busy := s.processes[0], s.processes[1], s.processes[2]
		killed.wants, idle.wants, busy.wants = 0, 0, 0
		s.run(5*time.Second, nil)
		s.kill(killed)
		s.want(busy, 10)
		s.within(t, fleet.Silent+2*time.Second, func() bool { return len(busy.calls) == 10 })
		joined := s.add(0)
		s.run(s.t+2*time.Second, nil)
		s.want(busy, 0)
		s.within(t, 15*time.Second, func() bool { return len(busy.calls) == 0 })
		s.want(joined, 10)
		s.within(t, fleet.Silent+2*time.Second, func() bool { return len(joined.calls) == 10 })
	}
}

// Law B5: if every process was killed, no process can vouch for the last writes, so a new
// process waits for the end of their calls.
func TestMachine_NoWitness(t *testing.T) {
	s := newSim(1, 10, 12*time.Second, 2)
	s.run(5*time.Second, nil)
	begin := s.t
	for _, p := range slices.Clone(s.processes) {
		s.kill(p)
	}
	p := s.add(10)
	s.within(t, 40*time.Second, func() bool { return len(p.calls) > 0 })
	require.Greater(t, s.t-begin, fleet.Lease+s.longest-fleet.Period)
	require.LessOrEqual(t, s.most, 10)
}

// Law B5: a process whose write may have been lost does not rely on earlier notices of
// its claim, and claims again.
func TestMachine_ClaimsAgainAfterALostAnswer(t *testing.T) {
	m := fleet.New("a")
	table, version := fleet.Table{Members: map[string]fleet.Member{"b": {Beat: 1, Written: 1, Longest: time.Second}}}, int64(1)
	at := fleet.Instant{}
	step := func() {
		at.Mono += 500 * time.Millisecond
		at.Wall += 500 * time.Millisecond
		table = m.Begin(at, at, version, table, fleet.Local{Limit: 10, Need: 10})
		version++
	}
	other := func() {
		version++
		table.Members["b"] = fleet.Member{Beat: version, Written: version, Longest: time.Second}
	}
	for range 4 {
		step()
		m.Commit(at, version)
	}
	require.True(t, m.IsPending())
	require.Zero(t, m.Share(at), "the other process has not written")
	step()
	m.Fail()
	require.False(t, m.IsPending())
	other()
	step()
	m.Commit(at, version)
	require.True(t, m.IsPending(), "the write of the other process is older than this claim")
	require.Zero(t, m.Share(at))
	for range 4 {
		other()
		step()
		m.Commit(at, version)
	}
	require.Equal(t, 10, m.Share(at))
}

func BenchmarkMachine_Begin(b *testing.B) {
	for _, n := range []int{50, 2000} {
		b.Run(fmt.Sprint("members=", n), func(b *testing.B) {
			table := fleet.Table{Members: map[string]fleet.Member{}}
			for i := range n {
				table.Members[fmt.Sprint(i)] = fleet.Member{Need: i % 10, Beat: 1, Written: 1, Longest: time.Second}
			}
			m := fleet.New("0")
			at := fleet.Instant{}
			for b.Loop() {
				at.Mono += time.Millisecond
				m.Begin(at, at, 1, table, fleet.Local{Limit: 100, Need: 5, Longest: time.Second})
			}
		})
	}
}

// Law B5: the engine loses every entry. A new process makes the next steps, and uses
// no permit until the other process had time to record its share again.
func TestMachine_LostTable(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(seed, 10, 12*time.Second, 1)
		first := s.processes[0]
		s.within(t, 5*time.Second, func() bool { return len(first.calls) == 10 })
		first.next = s.t + fleet.Period
		s.failover(s.t, 0)
		s.add(10).next = s.t
		s.run(s.t+5*time.Second, nil)
		require.LessOrEqual(t, s.most, 10, "seed %d", seed)
	}
}

// Law B5: new processes grow while a killed process may have had a share. The record of
// the share was lost with the writes of the processes that had noticed it, which are
// dead, too.
func TestMachine_LostWithItsWitnesses(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(seed, 10, 12*time.Second, 2)
		first, second := s.processes[0], s.processes[1]
		first.wants, second.wants = 0, 0
		s.run(5*time.Second, nil)
		begin := s.t
		s.want(first, 10)
		s.within(t, 5*time.Second, func() bool { return len(first.calls) == 10 })
		s.kill(first)
		s.kill(second)
		s.failover(s.t-begin+2*tick, 0)
		s.add(10)
		s.add(10)
		s.run(s.t+12*time.Second, nil)
		require.LessOrEqual(t, s.most, 10, "seed %d", seed)
	}
}

// Law B5: the engine loses every write of a process that was killed. The process that had
// noticed it stops all growth.
func TestMachine_LostJoinOfAKilledProcess(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(seed, 10, 12*time.Second, 1)
		witness := s.processes[0]
		witness.wants = 5
		s.run(25*time.Second, nil)
		before := s.t
		killed := s.add(5)
		s.within(t, 20*time.Second, func() bool { return len(killed.calls) == 5 })
		s.kill(killed)
		witness.wants = 10
		s.add(5)
		s.failover(s.t-before+2*tick, 0)
		s.run(s.t+8*time.Second, nil)
		require.LessOrEqual(t, s.most, 10, "seed %d", seed)
	}
}
