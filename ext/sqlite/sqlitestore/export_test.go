package sqlitestore

// SetStep sets what is called between statements.
func SetStep(s *Store, step func()) { s.step = step }

// Page is the condition of List and Claim.
var Page = page
