package call

import "github.com/weirflow/weir/predicates"

// Unchain takes l from what Take has returned, and returns the rest.
func (l *Letter) Unchain() (rest *Letter) {
	rest, l.Next = l.Next, nil
	return rest
}

// Report returns the latest stage that was reported, whether a client has a request in doubt, and whether the servers of all
// such requests recognise them.
func (t *Token) Report() (stage predicates.Stage, inDoubt, tracked bool) {
	return reported(t.state.Load())
}
