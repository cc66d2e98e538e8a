// Package offered gives an element that has failed an id that is the same each time it is offered to a failure sink: a sink that has stored it
// without knowing so stores it once.
package offered

import (
	"context"
	"crypto/rand"
	"sync"
)

// Name is the id of an element. Safe for concurrent use.
type Name struct {
	once sync.Once
	id   string
}

type key struct{}

// With returns a context for an offer of the element.
func (n *Name) With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, n) }

// ID returns the id of the element that is offered, at random; another one each time if ctx is of no offer.
func ID(ctx context.Context) string {
	n, ok := ctx.Value(key{}).(*Name)
	if !ok {
		return rand.Text()
	}
	n.once.Do(func() { n.id = rand.Text() })
	return n.id
}
