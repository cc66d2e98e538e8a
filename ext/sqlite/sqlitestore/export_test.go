package sqlitestore

// SetStep sets what is called between statements.
func SetStep(s *Store, step func()) { s.step = step }
