// Package metakey has the key under which a context carries the history of a message: package delivery reads it, and the
// context of an operator's attempt answers it without a context of its own.
package metakey

// Key is the key. The value is a delivery.Meta.
type Key struct{}
