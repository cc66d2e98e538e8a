package leases

import "context"

// KillSource ends a source as a crash of its process does.
func KillSource[T any](s *Source[T]) {
	killed, kill := context.WithCancel(context.Background())
	kill()
	_ = s.recorder.Close(killed, nil)
	_ = s.recorder.Close(context.Background(), func(context.Context) error {
		s.receiving <- struct{}{}
		defer func() { <-s.receiving }()
		s.mu.Lock()
		defer s.mu.Unlock()
		clear(s.handles)
		s.settled = nil
		return nil
	})
}
