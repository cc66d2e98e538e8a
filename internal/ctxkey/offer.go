package ctxkey

import (
	"context"
	"crypto/rand"
	"sync"
)

// Offer gives a failed element an id that is the same each time the element is offered to
// a failure sink. So a sink that has stored the element in a call that seemed to fail
// stores it once. It is safe for concurrent use.
type Offer struct {
	once sync.Once
	id   string
}

type offerKey struct{}

// With returns a context for an offer of the element.
func (o *Offer) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, offerKey{}, o)
}

// OfferID returns the random id of the offered element. Without an offer in ctx it
// returns a new id each time.
func OfferID(ctx context.Context) string {
	o, ok := ctx.Value(offerKey{}).(*Offer)
	if !ok {
		return rand.Text()
	}
	o.once.Do(func() { o.id = rand.Text() })
	return o.id
}
