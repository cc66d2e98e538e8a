package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
)

// Host returns c as participants see it: for authors of sources, operators and sinks.
func (c *Coordinator) Host() participant.Host { return (*host)(c) }

// host is the coordinator with the methods that only participants call. It is also the
// Reporter of its barriers.
type host Coordinator

// Register implements [participant.Host].
func (h *host) Register(name string, p participant.Participant) (state participant.State, resumes bool) {
	state, resumes, _ = (*Coordinator)(h).register(name, p)
	return state, resumes
}

// register is Register with an error for a participant that makes Start fail: it must not
// touch anything that a checkpoint may need.
func (c *Coordinator) register(name string, p participant.Participant) (state participant.State, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if err != nil {
			c.breakStart(err)
		}
	}()
	switch {
	case guard.IsNil(p):
		return nil, false, fmt.Errorf("checkpoint: participant %q is nil", name)
	case name == "":
		return nil, false, fmt.Errorf("checkpoint: a %T was registered without a name", p)
	case len(name) > maxNameLength || !utf8.ValidString(name):
		return nil, false, fmt.Errorf("checkpoint: the name of a %T is not UTF-8 of at most %d bytes: %.64q", p, maxNameLength, name)
	case c.starting:
		return nil, false, fmt.Errorf("checkpoint: participant %q was registered after the start", name)
	case slices.ContainsFunc(c.participants, func(q member) bool { return q.name == name }):
		return nil, false, fmt.Errorf("checkpoint: two participants are named %q", name)
	}
	if s, ok := p.(interface{ isSource() }); ok {
		s.isSource()
		if c.source != "" { // nothing aligns the barriers of several (law C2)
			return nil, false, fmt.Errorf("checkpoint: a pipeline has one source, and there are %q and %q: give each a coordinator and a store",
				c.source, name)
		}
		c.source = name
	}
	c.participants = append(c.participants, member{name, p})
	if c.patience == nil {
		c.patience = c.clock.AfterFunc(startPatience, func() { c.warnNotStarted(startPatience) })
	}
	if c.restored == nil {
		return nil, false, nil
	}
	state, ok = c.restored.State(name)
	_, isSource := p.(interface{ isSource() })
	switch {
	case ok:
	case isSource:
		return nil, false, stateError(name, c.restored.ID,
			fmt.Errorf("its state is missing there, and its input would begin anew; the checkpoint has states of %q", c.restored.Names()))
	case slices.Contains(c.added, name):
		return nil, false, nil
	default:
		return nil, false, stateError(name, c.restored.ID,
			fmt.Errorf("its state is missing there; the checkpoint has states of %q: was it renamed? If it is new, WithNewParticipants(%q) says so",
				c.restored.Names(), name))
	}
	return state, true, nil
}

// Refuse implements [participant.Host].
func (h *host) Refuse(name string, reason error) {
	c := (*Coordinator)(h)
	if reason == nil { // a typed nil is a reason
		panic("checkpoint: Refuse: nil reason")
	}
	reason = sane(reason)
	c.mu.Lock()
	defer c.mu.Unlock()
	id := uint64(0)
	if c.restored != nil {
		id = c.restored.ID
	}
	c.breakStart(stateError(name, id, reason))
}

// Started implements [participant.Host].
func (h *host) Started() <-chan struct{} { return h.started }

// Ended implements [participant.Host].
func (h *host) Ended() <-chan struct{} { return h.life.Done() }

// Err implements [participant.Host].
func (h *host) Err() error { return (*Coordinator)(h).Err() }

// RequestCheckpoint implements [participant.Host].
func (h *host) RequestCheckpoint() {
	c := (*Coordinator)(h)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requestLocked()
}

// RequestFinal implements [participant.Host].
func (h *host) RequestFinal(kind participant.Kind) {
	c := (*Coordinator)(h)
	mustBeFinal("RequestFinal", kind) // here, on the goroutine of the caller
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, asked := c.final[kind]; asked || c.isEnded {
		return
	}
	c.final[kind] = struct{}{}
	go func() { _ = c.Finish(context.Background(), Kind(kind)) }()
}

// Fail implements [participant.Host].
func (h *host) Fail(name string, reason error) {
	c := (*Coordinator)(h)
	if reason == nil {
		panic("checkpoint: Fail: nil reason")
	}
	reason = sane(reason)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(guard.Wrap(fmt.Sprintf("checkpoint: %q failed", name), reason))
}

// errNoState refuses a report without a state: a restart would resume from it (law C3).
var errNoState = errors.New("it reported neither a state nor an error: a state that is empty must not be nil")

// Report implements [participant.Reporter].
func (h *host) Report(id uint64, name string, state participant.State, err error) {
	c := (*Coordinator)(h)
	if err != nil {
		err = sane(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.run
	if c.drain != nil && c.drain.barrier.ID == id {
		r, state, err = c.drain, nil, nil // the final barrier asks for a state
	}
	if r == nil || r.barrier.ID != id || r.ended() {
		return // it was aborted
	}
	if c.isEnded {
		return // a run that has failed has no states any more that fit together (law C3): the checkpoint is aborted
	}
	if _, waiting := r.waiting[name]; !waiting {
		return // it has reported before
	}
	if err == nil && state == nil && r != c.drain {
		err = errNoState
	}
	if err != nil {
		r.fail(stateError(name, id, err))
		return
	}
	c.reported[name] = struct{}{}
	delete(r.waiting, name)
	r.states[name] = state
	if len(r.waiting) == 0 {
		close(r.settled)
	}
}
