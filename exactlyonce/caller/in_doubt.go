package caller

import "github.com/weirflow/weir/internal/ctxkey"

// inDoubt records which requests of an element may have taken effect, over all attempts.
// A request with an id is in doubt until its server keeps a refusal as its answer.
// Several requests stay in doubt, because only the step of a single request is stored. So
// do requests of a restored element.
//
//	noRequest ◀───NoteRefused─── oneRequest
//	    └──────────noteAsked────────▶│
//	                                 └─another step, NoteOthers─▶ severalRequests
type inDoubt uint8

const (
	noRequest       inDoubt = iota
	oneRequest              // the request of element.step
	severalRequests         // several requests, or an unknown number
)

var _ ctxkey.TrackedElement = (*element)(nil)

func (e *element) noteAsked(step string) {
	e.tracker.mu.Lock()
	defer e.tracker.mu.Unlock()
	switch {
	case e.inDoubt == noRequest:
		e.inDoubt, e.step = oneRequest, step
	case e.inDoubt == oneRequest && e.step != step:
		e.inDoubt, e.step = severalRequests, ""
	}
}

// NoteRefused implements [ctxkey.TrackedElement].
func (e *element) NoteRefused(step string) {
	e.tracker.mu.Lock()
	defer e.tracker.mu.Unlock()
	if e.inDoubt == oneRequest && e.step == step {
		e.inDoubt, e.step = noRequest, ""
	}
}

// NoteOthers implements [ctxkey.TrackedElement].
func (e *element) NoteOthers() {
	e.tracker.mu.Lock()
	defer e.tracker.mu.Unlock()
	e.inDoubt, e.step = severalRequests, ""
}

// AllRefused implements [ctxkey.TrackedElement].
func (e *element) AllRefused() bool {
	e.tracker.mu.Lock()
	defer e.tracker.mu.Unlock()
	return e.inDoubt == noRequest
}
