package backend

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// State is the state of a backend: whether calls start.
type State uint8

// The states. The package documentation has a diagram of the transitions.
const (
	Up      State = iota // calls start, within limit and rate
	Down                 // no call starts until a given time
	Probing              // a single call tries the service
	Ramping              // the load grows back
	Held                 // no call starts until Resume is called
)

// String returns the name of the state.
func (s State) String() string {
	switch s {
	case Up:
		return "up"
	case Down:
		return "down"
	case Probing:
		return "probing"
	case Ramping:
		return "ramping"
	case Held:
		return "held"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// health is the state of a backend, with its history. Guarded by Backend.mu.
type health struct {
	state  State
	why    string        // the reason for a state other than Up
	since  time.Duration // when the state began
	until  time.Duration // when Down ends, or would end in a dry run
	pause  time.Duration // length of the last Down without a time from the server; 0 if it has been up since
	begun  time.Duration // calls that began earlier say nothing of the present
	prober probe         // the one under way, or the last
	trying bool          // a probe is under way
	tried  time.Duration // when it began

	answeredAt time.Duration // the last answer; 0: none

	answered int // calls of the ramp
	older    int // calls that run since before the ramp
	target   int // calls at a time before the backend went down
	calls    window
}

// probe is the element of a seat that tries the service.
type probe struct {
	seat    *seat
	element uint64
}

// advance goes on where time alone does that.
func (b *Backend) advance(t time.Duration) {
	switch {
	case b.state == Down && t >= b.until:
		b.enter(Probing, b.until)
		b.trying = false
	case b.state == Ramping && t-b.since >= ramp && b.answered+1 >= b.goal():
		b.enter(Up, t)
		b.pause = 0
		b.log(slog.LevelInfo, "backend: up")
		b.handOut(t, nil)
	}
}

func (b *Backend) enter(s State, t time.Duration) {
	b.state, b.since = s, t
	if s == Up {
		b.why = ""
	}
}

// goDown takes the backend down for d, or, with 0, for longer than the last time.
func (b *Backend) goDown(t, d time.Duration, why string) {
	if b.dryRun {
		b.wouldGoDown(t, d, why)
		return
	}
	if d == 0 {
		b.pause = min(max(firstPause, 2*b.pause), longerPause)
		d = b.pause
	}
	if b.state == Up {
		b.target = b.used
	}
	wasUp := b.state == Up || b.state == Ramping
	b.enter(Down, t)
	b.until, b.why, b.trying = t+min(d, b.longest), why, false
	b.calls.reset()
	b.takeBack(t)
	b.rouse(t, nil) // they wait for another time now
	if wasUp {
		b.counts.Trips++
		b.log(slog.LevelWarn, "backend: down", slog.Duration("for", b.until-t))
	}
}

// wouldGoDown notes that a backend without DryRun would be down, unless it would be down already.
func (b *Backend) wouldGoDown(t, d time.Duration, why string) {
	b.calls.reset()
	isDown := t < b.until
	if d == 0 {
		d = firstPause
	}
	if b.until = max(b.until, t+min(d, b.longest)); isDown {
		return
	}
	b.counts.WouldHaveTripped++
	was := b.why
	b.why = why
	b.log(slog.LevelWarn, "backend: would be down without DryRun")
	b.why = was
}

// startRamp begins the ramp after a successful probe.
func (b *Backend) startRamp(t time.Duration) {
	b.enter(Ramping, t)
	b.begun, b.answered, b.older, b.trying = t, 0, b.used, false
	b.calls.reset()
	b.rate.fill(t, 1)
	b.rate.level = min(b.rate.level, 0)
	b.log(slog.LevelInfo, "backend: ramping: its service answers again", slog.Duration("over", ramp))
	b.handOut(t, nil)
}

// goal returns at how many calls at a time the ramp ends.
func (b *Backend) goal() int { return min(b.limit, max(b.target, fewCalls)) }

// fewCalls is where a ramp without a limit ends at least.
const fewCalls = 16

// part returns how much of its load the backend gets.
func (b *Backend) part(t time.Duration) float64 {
	if b.state != Ramping {
		return 1
	}
	return min(1, float64(t-b.since)/float64(ramp))
}

// allowed returns how many calls may run.
func (b *Backend) allowed(t time.Duration) int {
	switch b.state {
	case Up:
		return b.limit
	case Probing:
		if b.probes(t) > 0 {
			return 0
		}
		return b.limit
	case Ramping: // older ones may never end
		return min(b.limit, b.older+1+min(b.answered, b.grown(t)))
	case Down, Held:
	}
	return 0
}

// probes returns for how long the probe under way keeps others away; 0: there is none, or it takes too long.
func (b *Backend) probes(t time.Duration) time.Duration {
	if !b.trying {
		return 0
	}
	return max(0, b.tried+longerPause-t)
}

// grown returns how many calls more than one may run, as far as the time of the ramp is concerned.
func (b *Backend) grown(t time.Duration) int { return int(b.part(t) * float64(max(0, b.goal()-1))) }

// grows returns how long it takes until one more call may run; the answers it waits for wake it.
func (b *Backend) grows(t time.Duration) time.Duration {
	now, goal := b.grown(t), b.goal()
	switch {
	case b.answered+1 >= goal && now+1 >= goal:
		return max(1, b.since+ramp-t) // then it is up
	case now >= b.answered:
		return gate.Never
	}
	next := time.Duration(math.Ceil(float64(now+1) / float64(goal-1) * float64(ramp)))
	return max(1, b.since+next-t)
}

// isFailing reports whether too many calls were lost during a ramp, or while the backend is up.
func (b *Backend) isFailing() bool {
	w := &b.calls
	if b.state == Ramping {
		return w.losses >= relapse && float64(w.losses) > b.lossShare*float64(w.heard)
	}
	return float64(w.losses) > b.lossShare*float64(len(w.lost)) || w.row >= max(fewLosses, b.used)
}

const (
	relapse   = 3 // losses at least
	fewLosses = 5 // in a row at least
)

// log notes a line, which is written without the lock.
func (b *Backend) log(level slog.Level, text string, more ...any) {
	args := append([]any{slog.String("backend", b.name)}, more...)
	if b.why != "" {
		args = append(args, slog.String("reason", b.why))
	}
	b.lines = append(b.lines, line{level, text, args})
}
