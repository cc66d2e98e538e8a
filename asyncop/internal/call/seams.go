package call

// Hold is for tests: no worker is sent to due jobs before resume.
func (w *Workers[IN, OUT]) Hold() (resume func()) {
	set := func(coming bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.coming = coming
		w.sendNext()
	}
	set(true)
	return func() { set(false) }
}

// Due is for tests: it returns the number of due jobs.
func (w *Workers[IN, OUT]) Due() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.due
}

// Asked is for tests: it reports whether the context's end is observed.
func (t *Token) Asked() bool { return t.signal.Load() != nil }
