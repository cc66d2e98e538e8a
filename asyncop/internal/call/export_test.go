package call

import (
	"time"

	"github.com/weirflow/weir/predicates"
)

// Unchain detaches l from the chain that Take has returned, and returns the rest.
func (l *Letter) Unchain() (rest *Letter) {
	rest, l.Next = l.Next, nil
	return rest
}

// start binds a new token.
func (t *Token) start(host *Host, ref Ref, number int32, until time.Duration) {
	t.Host, t.Ref, t.Number, t.Until = host, ref, number, until
}

// Report returns the latest stage that was reported, whether a client has a request in
// doubt, and whether the servers of all such requests recognise them.
func (t *Token) Report() (stage predicates.Stage, inDoubt, deduplicated bool) {
	return reported(t.state.Load())
}
