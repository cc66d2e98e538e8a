package call

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/gate"
)

// someBackend is a backend that is not called.
type someBackend struct{ gate.Backend }

// The values of observers end in the context of the call around the operator. If that
// call goes to the same backend, its permit is not the permit of the call inside.
func TestWithValues_StampOfTheCallItself(t *testing.T) {
	h, _ := newHost(t)
	own, other := &someBackend{}, &someBackend{}
	h.Backend = own
	outer := context.WithValue(context.Background(), BackendKey{own}, gate.Stamp(1))
	outer = context.WithValue(outer, BackendKey{other}, gate.Stamp(2))
	h.Values = outer
	a := NewRoomy[int]()
	a.start(h, Ref{Generation: 1, Stamp: 3}, 1, NoDeadline)

	type nameKey struct{}
	ctx := WithValues(context.WithValue(outer, nameKey{}, "observed"), a)
	assert.Equal(t, "observed", ctx.Value(nameKey{}))
	assert.Equal(t, gate.Stamp(3), ctx.Value(BackendKey{own}))
	assert.Equal(t, gate.Stamp(2), ctx.Value(BackendKey{other}), "of the outer call: it has another backend")
}
