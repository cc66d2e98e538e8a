package ctxkey

import (
	"context"
	"crypto/rand"
	"sync"
)

// Offer gives an element that has failed an id that is the same each time it is offered to a failure sink: a sink that has stored it
// without knowing so stores it once. Safe for concurrent use.
type Offer struct {
	once sync.Once
	id   string
}

type offerKey struct{}

// With returns a context for an offer of the element.
func (o *Offer) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, offerKey{}, o)
}

// OfferID returns the id of the element that is offered, at random; another one each time if ctx is of no offer.
func OfferID(ctx context.Context) string {
	o, ok := ctx.Value(offerKey{}).(*Offer)
	if !ok {
		return rand.Text()
	}
	o.once.Do(func() { o.id = rand.Text() })
	return o.id
}
