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

// Host returns c as its participants see it.
func (c *Coordinator) Host() participant.Host { return (*host)(c) }

// host is a Coordinator for its participants, and the Reporter of its barriers.
type host Coordinator

func (h *host) Register(name string, p participant.Participant) (state participant.State, resumes bool) {
	state, resumes, _ = (*Coordinator)(h).register(name, p)
	return state, resumes
}

type streamSource interface{ isSource() }

// register is Register with an error, which also makes Start fail.
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
	_, isSource := p.(streamSource)
	if isSource {
		if c.source != "" { // the barriers of several sources would not be aligned (law C2)
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

func (h *host) Refuse(name string, reason error) {
	c := (*Coordinator)(h)
	if reason == nil { // a typed nil is accepted
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

func (h *host) Started() <-chan struct{} { return h.started }

func (h *host) Ended() <-chan struct{} { return h.life.Done() }

func (h *host) Err() error { return (*Coordinator)(h).Err() }

func (h *host) RequestCheckpoint() {
	c := (*Coordinator)(h)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requestLocked()
}

func (h *host) RequestFinal(kind participant.Kind) {
	c := (*Coordinator)(h)
	mustBeFinal("RequestFinal", kind) // panics on the caller's goroutine
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, asked := c.final[kind]; asked || c.isEnded {
		return
	}
	c.final[kind] = struct{}{}
	go func() { _ = c.Finish(context.Background(), Kind(kind)) }()
}

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

// errNoState is the error of a report without a state, which a restart would miss (law
// C3).
var errNoState = errors.New("it reported neither a state nor an error: a state that is empty must not be nil")

func (h *host) Report(id uint64, name string, state participant.State, err error) {
	c := (*Coordinator)(h)
	if err != nil {
		err = sane(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.run
	if c.drain != nil && c.drain.barrier.ID == id {
		r = c.drain
		state, err = nil, nil // only the final barrier needs a state
	}
	if r == nil || r.barrier.ID != id || r.ended() {
		return // the checkpoint was aborted
	}
	if c.isEnded {
		return // the states of a failed run may not fit together (law C3): abort
	}
	if _, waiting := r.waiting[name]; !waiting {
		return // already reported
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
