package checkpoint

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
)

type member struct {
	name string
	participant.Participant
}

// run is a checkpoint under way, or the marker of the end of the input.
type run struct {
	barrier participant.Barrier
	waiting map[string]struct{} // participants that have not reported
	states  map[string]participant.State
	request bool          // a participant has asked for it
	err     error         // why it cannot complete, or nil
	settled chan struct{} // closed when all have reported, or err is set
}

// beginCompletion leaves the end of the run to the final checkpoint, unless the run has
// ended.
func (c *Coordinator) beginCompletion() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return c.endErrorLocked()
	}
	c.completing = true
	return nil
}

// begin announces the next barrier. Called with busy held.
func (c *Coordinator) begin(kind participant.Kind) (*run, error) {
	r, err := c.newRun(kind)
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(c.participants) { // the source, usually first, comes last
		c.notify(p, func() { p.Pending(r.barrier) })
	}
	return r, nil
}

// notify runs f, which calls p. A panic ends the run (law A6).
func (c *Coordinator) notify(p member, f func()) {
	if err := protect(func() error { f(); return nil }); err != nil {
		c.Host().Fail(p.name, err)
	}
}

func (c *Coordinator) newRun(kind participant.Kind) (*run, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return nil, c.endErrorLocked()
	}
	c.lastID++
	r := &run{
		barrier: participant.NewBarrier(c.lastID, kind, (*host)(c)),
		waiting: make(map[string]struct{}, len(c.participants)),
		states:  make(map[string]participant.State, len(c.participants)),
		settled: make(chan struct{}),
	}
	for _, p := range c.participants {
		r.waiting[p.name] = struct{}{}
	}
	if kind == participant.EndOfInput {
		c.drain = r
	} else {
		c.run = r
		r.request, c.requested = c.requested, false
		c.stats.UnderWay, c.stats.Since = r.barrier.ID, c.clock.Now()
	}
	if len(r.waiting) == 0 {
		close(r.settled)
	}
	return r, nil
}

func (c *Coordinator) await(ctx context.Context, r *run) error {
	timer := c.clock.Timer(c.timeout)
	defer timer.Stop()
	reminder := c.newReminder()
	defer reminder.timer.Stop()
	var err error
	for waiting := true; waiting; {
		waiting = false
		select {
		case <-r.settled:
		case <-c.life.Done():
			err = c.endError()
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timer.C:
			err = fmt.Errorf("not complete after %v", c.timeout)
		case <-reminder.timer.C:
			reminder.warn(r, true)
			waiting = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run = nil
	if r.err != nil {
		return r.err
	}
	if c.isEnded && len(r.waiting) == 0 { // the states may not fit together (law C2)
		return c.endErrorLocked()
	}
	if err != nil && len(r.waiting) > 0 {
		return fmt.Errorf("%w: no report from %s", err, quoted(r.waiting))
	}
	return nil // all have reported, perhaps just after ctx ended
}

func (r *run) ended() bool {
	select {
	case <-r.settled:
		return true
	default:
		return false
	}
}

func (r *run) fail(err error) {
	r.err = err
	close(r.settled)
}

// listed joins names for an attribute of a log line, which the handler quotes.
func listed(names map[string]struct{}) string {
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

func quoted(names map[string]struct{}) string {
	var out []string
	for name := range names {
		out = append(out, fmt.Sprintf("%q", name))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// stateError is the error of a participant that does not fit its state in a checkpoint, 0
// if unknown. It does not call the Error method of reason, perhaps a user's, before the
// message is needed.
func stateError(name string, checkpoint uint64, reason error) error {
	if checkpoint == 0 {
		return guard.Wrap(fmt.Sprintf("checkpoint: state of %q", name), reason)
	}
	return guard.Wrap(fmt.Sprintf("checkpoint: state of %q in checkpoint %d", name, checkpoint), reason)
}
