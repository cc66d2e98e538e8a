package call

// Hold is for tests: until resume is called, no worker comes to a job, as if no processor
// came free.
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

// Due is for tests: it returns how many jobs are due.
func (w *Workers[IN, OUT]) Due() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.due
}

// Asked is for tests: it reports whether the end of the context was asked for.
func (t *Token) Asked() bool { return t.signal.Load() != nil }
