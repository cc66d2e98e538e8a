package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// pair are two processes that share the permits, and whose elements wait.
type pair struct {
	*testing.T
	*record
	a, b *member
	now  time.Duration
}

func newPair(t *testing.T) *pair {
	t.Helper()
	r := &record{}
	p := &pair{t, r, newMember(r, "a", time.Minute), newMember(r, "b", time.Minute), 0}
	for _, m := range []*member{p.a, p.b} {
		m.local.Need = 5
		m.local.Waits = true
	}
	for range 25 {
		p.step(p.a, p.b)
	}
	require.Equal(t, 5, p.a.share(p.now))
	require.Equal(t, 5, p.b.share(p.now))
	for _, m := range []*member{p.a, p.b} {
		h, news := m.Adopt(p.now)
		require.NotEqual(t, fleet.NoNews, news)
		require.Equal(t, fleet.Health{State: fleet.Up}, h)
	}
	return p
}

// step makes a step of each process, 200 ms later.
func (p *pair) step(all ...*member) {
	p.now += 200 * ms
	for _, m := range all {
		m.step(p.now)
	}
}

// propose makes a process find that the service is down for d.
func (p *pair) propose(m *member, why string, d time.Duration) {
	m.Propose(m.instant(p.now), fleet.Health{State: fleet.Down, Why: why, Until: p.now + d}, false)
}

func (p *pair) mayProbe(m *member) bool { return m.MayProbe(m.instant(p.now)) }

// goDown makes process a find that the service is down, and then claim the right to
// probe.
func (p *pair) goDown() {
	p.propose(p.a, "trip", 0)
	p.step(p.a)
	require.True(p, p.a.entry().Probe)
}

// The right to probe is used when all other processes have written since it was claimed.
func TestMachine_ProbeIsNoticed(t *testing.T) {
	p := newPair(t)
	p.goDown()
	for range 5 {
		p.step(p.a)
		require.False(t, p.mayProbe(p.a))
	}
	p.step(p.b)
	require.False(t, p.b.entry().Probe, "the right is taken")
	p.step(p.a)
	require.True(t, p.mayProbe(p.a))
}

// A process has the right to probe until its lease ends.
func TestMachine_ProbeEndsWithTheLease(t *testing.T) {
	p := newPair(t)
	p.goDown()
	p.step(p.b, p.a)
	require.True(t, p.mayProbe(p.a))
	p.now += fleet.Lease
	require.False(t, p.mayProbe(p.a))
}

// The claim of a process that no longer writes counts until its lease and a probe have
// ended, however long a call takes.
func TestMachine_ProbeOfASilentProcess(t *testing.T) {
	p := newPair(t)
	p.goDown()
	p.step(p.b, p.a, p.b)
	require.True(t, p.mayProbe(p.a))
	begin := p.now
	for p.now < begin+fleet.Lease+fleet.ProbeTime {
		p.step(p.b)
		require.False(t, p.mayProbe(p.b), "after %v", p.now-begin)
	}
	for range 5 {
		p.step(p.b)
	}
	require.True(t, p.mayProbe(p.b))
}

// The engine loses a claim. The process that has claimed finds the claim of another
// process, and withdraws its own one.
func TestMachine_ProbeClaimedTwice(t *testing.T) {
	p := newPair(t)
	p.propose(p.a, "trip", 0)
	p.step(p.a, p.b)
	before := p.backup()
	require.True(t, before.table.Members["a"].Probe)
	lost := before.table.Members["a"]
	lost.Probe = false
	before.table.Members["a"] = lost
	*p.record = before
	p.b.local.Probing = true // it records its claim again
	p.step(p.b)
	p.step(p.a)
	require.False(t, p.a.entry().Probe)
	p.step(p.b, p.a)
	require.False(t, p.mayProbe(p.a))
}

// After a step without an answer a process claims the right to probe again.
func TestMachine_ProbeClaimedAgainAfterALostAnswer(t *testing.T) {
	p := newPair(t)
	p.goDown()
	p.now += 200 * ms
	p.a.write(p.now)
	p.a.Fail()
	require.False(t, p.a.IsPending())
	p.step(p.b)
	for range 8 { // the process has to settle, too
		p.step(p.a)
		require.False(t, p.mayProbe(p.a), "the other process has written before this claim")
	}
	p.step(p.b, p.a)
	require.True(t, p.mayProbe(p.a))
}

// A probe that is under way counts, also after the lease in which it began, and keeps its
// process from another one.
func TestMachine_ProbeOutlivesTheLease(t *testing.T) {
	p := newPair(t)
	p.goDown()
	p.step(p.b, p.a)
	p.a.local.Probing = true
	for range 30 {
		p.step(p.b)
	}
	for range 12 {
		p.step(p.a, p.b)
		require.True(t, p.a.entry().Probe)
		require.False(t, p.mayProbe(p.a))
		require.False(t, p.mayProbe(p.b))
	}
	p.a.local.Probing = false
	for range 12 {
		p.step(p.a, p.b)
	}
	require.True(t, p.mayProbe(p.a) || p.mayProbe(p.b))
}

// While a process has found that the engine lost writes, no process claims the right to
// probe, because a claim may have been lost.
func TestMachine_ProbeAfterALoss(t *testing.T) {
	p := newPair(t)
	p.table.Members["c"] = fleet.Member{Stopped: true, Beat: 1, Written: 1, Joined: 1}
	p.propose(p.a, "trip", 0)
	for range 5 {
		p.step(p.a, p.b)
		require.False(t, p.a.entry().Probe)
		require.False(t, p.b.entry().Probe)
	}
	p.version++
	p.table.Members["c"] = fleet.Member{Beat: 2, Written: p.version, Joined: 1}
	p.step(p.a)
	require.True(t, p.a.entry().Probe)
}

// The engine loses the record of an outage, and has no state or an earlier one. A process
// that has read the outage records it again.
func TestMachine_LostOutage(t *testing.T) {
	for _, hasEarlier := range []bool{false, true} {
		t.Run(fmt.Sprint("hasEarlier=", hasEarlier), func(t *testing.T) {
			p := newPair(t)
			if hasEarlier {
				p.a.Propose(p.a.instant(p.now), fleet.Health{State: fleet.Ramping}, false)
				p.step(p.a, p.b)
				p.b.Adopt(p.now)
			}
			before := p.backup()
			before.table.Health = p.table.Health
			p.propose(p.a, "trip", time.Second)
			p.step(p.a, p.b)
			h, news := p.b.Adopt(p.now)
			require.NotEqual(t, fleet.NoNews, news)
			require.Equal(t, fleet.Down, h.State)

			*p.record = before
			p.step(p.b)
			_, news = p.b.Adopt(p.now)
			require.Equal(t, fleet.NoNews, news)
			require.Equal(t, "trip", p.table.Health.Why)
			require.Equal(t, 600*ms, p.table.Health.Left)
		})
	}
}

// A process that has read how much time is left is not misled by an older record of it.
func TestMachine_LeftOfAnOlderRecord(t *testing.T) {
	p := newPair(t)
	p.propose(p.a, "trip", 10*time.Second)
	p.step(p.a, p.b)
	require.Equal(t, 9800*ms, p.b.table.Health.Left)
	old := p.table.Health
	p.now += 2 * time.Second
	p.table.Health = old // as a process that leaves writes it
	p.step(p.b)
	require.Equal(t, 7600*ms, p.b.table.Health.Left)
}

// Evidence that is older than a change by another process does not count. An order to
// hold counts.
func TestMachine_EvidenceIsOlderThanAChange(t *testing.T) {
	p := newPair(t)
	p.propose(p.a, "old", 0)
	p.propose(p.b, "new", 0)
	p.step(p.b, p.a)
	require.Equal(t, "new", p.table.Health.Why)
	h, news := p.a.Adopt(p.now)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, "new", h.Why)

	p.a.Propose(p.a.instant(p.now), fleet.Health{State: fleet.Held, Why: "order"}, true)
	p.propose(p.b, "newer", 0)
	p.step(p.b, p.a)
	require.Equal(t, "order", p.table.Health.Why)
}

// The answer to the write of an outage was lost. The process finds its own change in the
// table, and neither makes it again nor adopts it.
func TestMachine_LostAnswerToAnOutage(t *testing.T) {
	p := newPair(t)
	p.propose(p.a, "trip", time.Second)
	p.now += 200 * ms
	p.a.write(p.now)
	p.a.Fail()
	p.step(p.a)
	_, news := p.a.Adopt(p.now)
	require.Equal(t, fleet.NoNews, news)
	require.EqualValues(t, 1, p.table.Health.Number)
}

// Evidence of a process whose lease has ended does not count, and the process adopts the
// state of the fleet again.
func TestMachine_EvidenceWithoutALease(t *testing.T) {
	p := newPair(t)
	p.propose(p.b, "trip", 0)
	p.step(p.b, p.a)
	_, news := p.a.Adopt(p.now)
	require.Equal(t, fleet.NewState, news)

	p.a.Propose(p.a.instant(p.now), fleet.Health{State: fleet.Ramping, Until: p.now + time.Hour, Over: time.Hour}, false)
	for range 30 {
		p.step(p.b)
	}
	p.propose(p.a, "alone", 0)
	p.step(p.a)
	require.Equal(t, "trip", p.table.Health.Why)
	h, news := p.a.Adopt(p.now)
	require.Equal(t, fleet.OldState, news)
	require.Equal(t, "trip", h.Why)
}

// A process that leaves keeps the state in the record. A hold ends when all processes have
// left and another one joins. A process that has left knows the hold, and obeys it when it
// comes back.
func TestMachine_HoldAfterAllHaveLeft(t *testing.T) {
	for _, joins := range []bool{true, false} {
		p := newPair(t)
		p.order(p.a, fleet.Held, "order")
		p.step(p.a, p.b)
		p.table = p.b.Leave(p.a.Leave(p.table))
		p.version++
		require.Equal(t, fleet.Held, p.table.Health.State)
		next := p.b
		if joins {
			next = newMember(p.record, "c", time.Minute)
		}
		p.step(next)
		h, news := next.Adopt(p.now)
		require.NotEqual(t, fleet.NoNews, news)
		require.Equal(t, joins, h.State == fleet.Up)
		require.Equal(t, joins, p.table.Health.State == fleet.Up)
	}
}

// Two processes are asked to pause, and the longer pause counts.
func TestMachine_LongerPauseCounts(t *testing.T) {
	p := newPair(t)
	p.b.ProposePause(fleet.Pause{Until: p.now + 10*time.Second, Why: "long"})
	p.step(p.b)
	p.a.ProposePause(fleet.Pause{Until: p.now + 5*time.Second, Why: "shorter"})
	p.step(p.a)
	require.Equal(t, "long", p.table.Pause.Why)
	require.Equal(t, "long", p.a.Pause().Why)
	require.Equal(t, 9800*ms, p.table.Pause.Left, "from the read of a process that has no earlier end")
}

// The paces of the other processes add up to the pace of the fleet.
func TestMachine_OthersPace(t *testing.T) {
	p := newPair(t)
	p.a.local.Pace = 30
	p.b.local.Pace = 12
	p.step(p.a, p.b, p.a)
	require.InDelta(t, 12, p.a.OthersPace(), 0)
	require.InDelta(t, 30, p.b.OthersPace(), 0)
}

// order makes a process propose what a person has ordered.
func (p *pair) order(m *member, s fleet.State, why string) {
	m.Propose(m.instant(p.now), fleet.Health{State: s, Why: why, Until: p.now}, true)
}

// stepWithoutAnswer makes a step that is written, but of which the process does not know.
func (p *pair) stepWithoutAnswer(m *member) {
	p.now += 200 * ms
	m.write(p.now)
	m.Fail()
}

// A hold was recorded and obeyed, but its answer was lost. A person resumes in the other
// process. When the first one reaches the engine again, it does not hold again.
func TestMachine_HoldWithALostAnswerLapses(t *testing.T) {
	p := newPair(t)
	p.order(p.a, fleet.Held, "hold")
	p.stepWithoutAnswer(p.a)
	p.step(p.b)
	h, news := p.b.Adopt(p.now)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, fleet.Held, h.State)
	p.order(p.b, fleet.Down, "resume")
	p.step(p.b)
	p.b.Propose(p.b.instant(p.now), fleet.Health{State: fleet.Ramping, Until: p.now + time.Second, Over: time.Second}, false)
	for range 50 {
		p.step(p.b)
	}
	p.step(p.a)
	require.Equal(t, fleet.Up, p.table.Health.State, "why: %s", p.table.Health.Why)
	require.True(t, p.a.Lapsed())
	require.False(t, p.a.Lapsed())
}

// An order to resume, whose answer was lost, does not end the pause of a later outage.
func TestMachine_ResumeWithALostAnswerLapses(t *testing.T) {
	p := newPair(t)
	p.order(p.a, fleet.Held, "hold")
	p.step(p.a, p.b)
	p.order(p.a, fleet.Down, "resume")
	p.stepWithoutAnswer(p.a)
	p.step(p.b)
	p.b.Adopt(p.now)
	p.propose(p.b, "503 with Retry-After: 600", 10*time.Minute)
	for range 50 {
		p.step(p.b)
	}
	p.step(p.a)
	require.Greater(t, p.table.Health.Left, 9*time.Minute, p.table.Health.Why)
}

// A process that is cut off is told to resume. Meanwhile the fleet was resumed, and held
// anew. The old order does not end the new hold.
func TestMachine_StaleResumeLapses(t *testing.T) {
	p := newPair(t)
	p.order(p.a, fleet.Held, "first")
	p.step(p.a, p.b)
	p.b.Adopt(p.now)
	p.order(p.a, fleet.Down, "resume") // it does not reach the engine
	p.order(p.b, fleet.Down, "resume")
	for range 3600 * 5 { // an hour
		p.step(p.b)
	}
	p.order(p.b, fleet.Held, "second")
	p.step(p.b, p.a)
	require.Equal(t, fleet.Held, p.table.Health.State, "%+v", p.table.Health)
}

// A process has the right basis for its order, however long it could not record it.
func TestMachine_OrderWithoutAChangeMeanwhile(t *testing.T) {
	p := newPair(t)
	p.order(p.a, fleet.Held, "hold")
	for range 50 {
		p.step(p.b)
	}
	p.step(p.a)
	require.Equal(t, fleet.Held, p.table.Health.State)
	require.False(t, p.a.Lapsed())
}

// Resume in a process that has not read the hold yet. It obeys the hold, and then the end
// of the hold.
func TestMachine_ResumeBeforeTheHoldIsRead(t *testing.T) {
	p := newPair(t)
	p.order(p.a, fleet.Held, "hold")
	p.step(p.a)
	p.b.Resume(p.b.instant(p.now))
	require.True(t, p.b.HasOrder())
	p.now += 200 * ms
	p.b.write(p.now)
	h, news := p.b.Adopt(p.now)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, fleet.Held, h.State)
	p.b.commit(p.now, p.version)
	require.Equal(t, fleet.Down, p.table.Health.State)
	require.False(t, p.b.HasOrder())
	h, news = p.b.Adopt(p.now)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, fleet.Down, h.State)
}

// A pause of exactly a second is recorded, although less is left at the next step.
func TestMachine_PauseOfASecond(t *testing.T) {
	p := newPair(t)
	p.a.ProposePause(fleet.Pause{Until: p.now + time.Second, Why: "Retry-After: 1"})
	p.now += ms
	p.a.step(p.now)
	require.NotNil(t, p.table.Pause)
	require.Equal(t, time.Second-ms, p.table.Pause.Left)
}

// A process never gives a number to two changes. The answer to an outage is lost, the
// other process reads it, and the engine loses it. Then the first process is told to hold.
func TestMachine_NumberOfALostChange(t *testing.T) {
	p := newPair(t)
	before := p.backup()
	p.propose(p.a, "trip", 0)
	p.stepWithoutAnswer(p.a)
	p.step(p.b)
	h, _ := p.b.Adopt(p.now)
	require.Equal(t, fleet.Down, h.State)
	*p.record = before
	p.order(p.a, fleet.Held, "hold")
	p.step(p.a, p.b)
	h, news := p.b.Adopt(p.now)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, fleet.Held, h.State)
	p.step(p.a, p.b)
	require.Equal(t, fleet.Held, p.table.Health.State)
}
