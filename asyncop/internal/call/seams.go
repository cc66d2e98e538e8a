package call

// Hold is for tests: no worker is sent before resume.
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

// Due is for tests.
func (w *Workers[IN, OUT]) Due() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.due
}

// Asked is for tests.
func (t *Token) Asked() bool { return t.signal.Load() != nil }
