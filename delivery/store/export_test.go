package store

// KillSource ends a source as a crash of its process does.
func KillSource[T any](s *Source[T]) {
	s.cancel(errSourceClosed)
	<-s.ended
	s.receiving.Lock()
	defer s.receiving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	clear(s.held)
	s.settled = nil
}
