package pgstore

// SetStep sets what is called between statements.
func SetStep(s *Store, step func()) { s.step = step }

// SetNow sets the expression that is the database's clock.
func SetNow(s *Store, now string) { s.now = now }
