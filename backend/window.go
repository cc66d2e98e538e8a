package backend

import "strconv"

// window remembers which of the last calls were lost. Its owner guards it.
type window struct {
	lost   []bool // a ring
	next   int
	heard  int // up to len(lost)
	losses int // of them
	row    int // calls in a row that were lost
}

func newWindow(n int) window { return window{lost: make([]bool, n)} }

// noteOfMany notes a call of a tenant. It makes the n entries when a call is lost,
// because there may be many tenants.
func (w *window) noteOfMany(lost bool, n int) {
	if w.lost == nil && lost {
		*w = newWindow(n)
	}
	if w.lost != nil {
		w.note(lost)
	}
}

func (w *window) note(lost bool) {
	if w.lost[w.next] {
		w.losses--
	}
	w.lost[w.next] = lost
	if w.next++; w.next == len(w.lost) {
		w.next = 0
	}
	w.heard = min(w.heard+1, len(w.lost))
	if lost {
		w.losses++
		w.row++
		return
	}
	w.row = 0
}

// String describes the lost calls as a share of the last calls.
func (w *window) String() string {
	return strconv.Itoa(w.losses) + " of " + strconv.Itoa(w.heard) + " calls"
}

func (w *window) reset() {
	clear(w.lost)
	w.next = 0
	w.heard = 0
	w.losses = 0
	w.row = 0
}
