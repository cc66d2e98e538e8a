package fleet_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

const ms = time.Millisecond

// record is the record of an engine. A copy of it is a backup.
type record struct {
	table   fleet.Table
	version int64
}

// backup returns a copy of the record.
func (r *record) backup() record {
	return record{fleet.Table{Members: maps.Clone(r.table.Members)}, r.version}
}

// member is a process whose steps a test makes one by one.
type member struct {
	*fleet.Machine
	id        string
	local     fleet.Local
	suspended time.Duration // how far its monotonic clock is behind
	*record
}

func newMember(r *record, id string, longest time.Duration) *member {
	return &member{Machine: fleet.New(id), id: id, local: fleet.Local{Limit: 10, Longest: longest}, record: r}
}

func (p *member) instant(at time.Duration) fleet.Instant {
	return fleet.Instant{Mono: at - p.suspended, Wall: at}
}

// step makes a step that takes no time. Then the process uses its whole share.
func (p *member) step(at time.Duration) {
	p.write(at)
	p.commit(at, p.version)
	p.local.Running = p.share(at)
}

// write makes the first part of a step. The answer of the engine is under way.
func (p *member) write(at time.Duration) {
	p.table = p.Begin(p.instant(at), p.instant(at), p.version, p.table, p.local)
	p.version++
}

// commit ends a step, when the answer of the engine has come.
func (p *member) commit(at time.Duration, version int64) { p.Commit(p.instant(at), version) }

func (p *member) share(at time.Duration) int { return p.Share(p.instant(at)) }

// entry returns the entry of the process in the record.
func (p *member) entry() fleet.Member { return p.table.Members[p.id] }

// join makes the steps of the first five seconds of processes without calls, and returns
// the time after them.
func join(all ...*member) time.Duration {
	now := time.Duration(0)
	for ; now < 5*time.Second; now += time.Second {
		for i, p := range all {
			p.step(now + time.Duration(i)*10*ms)
		}
	}
	return now
}

// Law B5: the answer of a write comes 2.5 s later, or the machine of the process is
// suspended for this time. Meanwhile another process takes this one for silent, and grows
// without its notice. The engine loses the growth.
func TestMachine_LateAnswer(t *testing.T) {
	for _, suspended := range []time.Duration{0, 2500 * ms} {
		t.Run(fmt.Sprint("suspended=", suspended), func(t *testing.T) {
			r := &record{}
			grown, late := newMember(r, "a", 30*time.Second), newMember(r, "b", 30*time.Second)
			now := join(grown, late)
			late.write(now)
			wrote := r.version
			grown.step(now + 20*ms)
			before := r.backup()
			grown.local.Need = 10
			for d := 100 * ms; d <= 2700*ms; d += 200 * ms {
				grown.step(now + d)
			}
			require.Equal(t, 10, grown.share(now+2700*ms))
			late.suspended = suspended
			late.commit(now+2500*ms, wrote)

			*r = before // grown is killed with ten calls
			late.local.Need = 10
			for d := 2800 * ms; d < 30*time.Second; d += 300 * ms {
				late.step(now + d)
				require.Zero(t, late.share(now+d), d)
			}
		})
	}
}

// Law B5: a process has not reached the engine for 3 s, in which another process grew
// without its notice. The engine loses the growth, and the other process is cut off. Its
// calls begin until the end of its lease, so its entry counts from now on, and not since
// this process saw it before.
func TestMachine_SightingFromBeforeAGap(t *testing.T) {
	const longest = 12 * time.Second
	r := &record{}
	grown, back := newMember(r, "a", longest), newMember(r, "b", longest)
	now := join(grown, back)
	grown.step(now)
	back.step(now + 10*ms)
	before := r.backup()
	grown.local.Need = 10
	last := 3900 * ms
	for d := 100 * ms; d <= last; d += 200 * ms {
		grown.step(now + d)
		back.Fail()
	}
	require.Equal(t, 10, grown.share(now+last))

	*r = before
	back.local.Need = 10
	for d := last + 100*ms; d < last+fleet.Lease+longest; d += 300 * ms {
		back.step(now + d)
		require.Zero(t, back.share(now+d), d)
	}
	for d := last + fleet.Lease + longest; d < last+fleet.Lease+longest+4*time.Second; d += 300 * ms {
		back.step(now + d)
	}
	require.Equal(t, 10, back.local.Running)
}

// Law B5: the engine loses the entry of a process with long calls that was killed. The
// process with short calls that had noticed them is dead, too. Its entry counts until the
// long calls have ended.
func TestMachine_LostEntryWithALongerCall(t *testing.T) {
	const longest = 30 * time.Second
	r := &record{}
	lost, witness, next := newMember(r, "a", longest), newMember(r, "b", time.Second), newMember(r, "c", longest)
	now := join(witness)
	before := r.backup()
	lost.local.Need, next.local.Need = 10, 10
	for d := 0 * ms; d <= 2000*ms; d += 200 * ms {
		lost.step(now + d)
		witness.step(now + d + 50*ms)
	}
	require.Equal(t, 10, lost.share(now+2000*ms))

	*r = before
	for d := 2100 * ms; d < 2000*ms+longest; d += 300 * ms {
		next.step(now + d)
		require.Zero(t, next.share(now+d), d)
	}
}

// Law B5: the engine loses the growth of a process that was killed. Before the process
// that had noticed it makes its next step, a new one has written so often that the
// version of the record is as high as before. Only the entry of the witness shows the
// loss: its beat is too low, or the entry is missing.
func TestMachine_LossThatTheVersionDoesNotShow(t *testing.T) {
	const longest = 12 * time.Second
	for _, losesEntry := range []bool{false, true} {
		t.Run(fmt.Sprint("losesEntry=", losesEntry), func(t *testing.T) {
			r := &record{}
			before := r.backup()
			grown, witness := newMember(r, "a", longest), newMember(r, "b", longest)
			now := join(grown, witness)
			if !losesEntry {
				before = r.backup()
			}
			grown.local.Need = 10
			for d := 0 * ms; d <= 600*ms; d += 200 * ms {
				grown.step(now + d)
				witness.step(now + d + 50*ms)
			}
			require.Equal(t, 10, grown.share(now+600*ms))
			version := r.version

			*r = before
			joined := newMember(r, "c", longest)
			for d := 700 * ms; r.version < version; d += 10 * ms {
				joined.step(now + d)
			}
			witness.local.Need = 10
			for d := 900 * ms; d < longest; d += 300 * ms {
				witness.step(now + d)
				joined.step(now + d + 50*ms)
				require.Zero(t, witness.share(now+d), d)
			}
		})
	}
}

// Law B5: the engine loses the entries of all processes. One of them did not reach it for
// longer than its lease, and another one has grown meanwhile and was killed. So the
// record has no entry that shows the loss, but its version is too low.
func TestMachine_LossWhileItsLeaseEnded(t *testing.T) {
	const longest = 12 * time.Second
	r := &record{}
	before := r.backup()
	grown, back := newMember(r, "a", longest), newMember(r, "b", longest)
	now := join(grown, back)
	grown.local.Need = 10
	last := 6 * time.Second
	for d := 0 * ms; d <= last; d += 200 * ms {
		grown.step(now + d)
		back.Fail()
	}
	require.Equal(t, 10, grown.share(now+last))

	*r = before
	back.local.Need = 10
	for d := last; d < last+longest; d += 300 * ms {
		back.step(now + d)
		require.Zero(t, back.share(now+d), d)
	}
}

// A limit that is lowered while a claim waits for notice also lowers the claim: the
// process may use only the permits of the new limit that other processes leave free.
func TestMachine_LimitLoweredWhileAClaimWaits(t *testing.T) {
	r := &record{}
	first, second := newMember(r, "a", time.Second), newMember(r, "b", time.Second)
	now := join(first, second)
	first.local.Need = 10
	for d := 0 * ms; d <= 600*ms; d += 200 * ms {
		first.step(now + d)
		second.step(now + d + 50*ms)
	}
	first.local.Running, second.local.Need = 5, 10
	second.step(now + 700*ms)
	first.step(now + 750*ms)
	require.Equal(t, 5, first.local.Running)
	second.step(now + 800*ms)
	require.Equal(t, 5, second.entry().Share)
	require.Zero(t, second.local.Running)

	first.local.Limit, second.local.Limit = 6, 6
	first.write(now + 900*ms) // five calls continue
	first.commit(now+900*ms, r.version)
	require.Equal(t, 5, first.entry().Share)
	second.step(now + time.Second)
	require.Equal(t, 1, second.local.Running)
}

// Law B5: the share of a process shrinks, and the answer to its write is late. Another
// process takes this one for silent, and uses the released permits without its notice.
func TestMachine_ShrinksBeforeTheAnswer(t *testing.T) {
	r := &record{}
	shrinks, grows := newMember(r, "a", time.Second), newMember(r, "b", time.Second)
	now := join(shrinks, grows)
	shrinks.local.Need = 10
	for d := 0 * ms; d < 3*time.Second; d += 200 * ms {
		shrinks.step(now + d)
		grows.step(now + d + 10*ms)
	}
	now += 3 * time.Second
	require.Equal(t, 10, shrinks.share(now))
	grows.local.Need = 10
	grows.step(now)
	shrinks.local.Need, shrinks.local.Running = 3, 3
	shrinks.write(now + 10*ms)
	require.Equal(t, 3, shrinks.share(now+10*ms))
	last := 3 * time.Second
	for d := 100 * ms; d <= last; d += 200 * ms {
		grows.step(now + d)
	}
	require.Equal(t, 7, grows.share(now+last))
	require.Equal(t, 3, shrinks.share(now+last), "its lease has not ended")
}

// Law B5: a process that has found a loss records the longest call of all. If it dies and
// the process with that call ends, its entry stops growth for long enough.
func TestMachine_StoppedEntryHasTheLongestCallOfAll(t *testing.T) {
	const longest = 30 * time.Second
	r := &record{}
	ends, finds := newMember(r, "a", longest), newMember(r, "b", time.Second)
	now := join(ends, finds)
	before := r.backup()
	finds.step(now)
	*r = before
	finds.step(now + time.Second)
	require.True(t, finds.entry().Stopped)
	require.Equal(t, longest, finds.entry().Longest)
	r.table = ends.Leave(r.table)
	r.version++

	found := now + time.Second
	next := newMember(r, "c", time.Second)
	next.local.Need = 10
	for d := 100 * ms; d < fleet.Lease+longest; d += 300 * ms {
		next.step(found + d)
		require.Zero(t, next.share(found+d), d)
	}
}
