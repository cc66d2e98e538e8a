package call

import "sync"

// outliving has the tokens of ended attempts whose functions still run. Some of these
// functions, usually less than half of them, may have returned since.
type outliving struct {
	mu     sync.Mutex
	tokens []*Token // guarded by mu
	prune  int      // guarded by mu; number of tokens at which they are pruned
}

// NoteOutliving notes an attempt that has ended, if its function still runs.
func (h *Host) NoteOutliving(t *Token) {
	if !t.isOutliving() {
		return
	}
	o := &h.outliving
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.tokens) >= o.prune {
		o.removeReturned()
		o.prune = max(16, 2*len(o.tokens))
	}
	o.tokens = append(o.tokens, t)
}

// Outliving returns the ids of the messages of ended attempts whose functions still
// run, in the order of the ends. Without a message the id is "".
func (h *Host) Outliving() (ids []string) {
	o := &h.outliving
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removeReturned()
	for _, t := range o.tokens {
		id := ""
		if s := t.signal.Load(); s != nil {
			id = s.message.Meta().ID
		}
		ids = append(ids, id)
	}
	return ids
}

// removeReturned is called with mu held.
func (o *outliving) removeReturned() {
	kept := o.tokens[:0]
	for _, t := range o.tokens {
		if !t.HasReturned() {
			kept = append(kept, t)
		}
	}
	clear(o.tokens[len(kept):])
	o.tokens = kept
}

// isOutliving reports whether a function that has occupied the attempt still runs.
func (t *Token) isOutliving() bool { return t.state.Load()&(occupied|returned) == occupied }
