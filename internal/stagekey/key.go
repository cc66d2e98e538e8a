// Package stagekey holds the context key under which an attempt answers to package predicates, so that asyncop can
// answer it without an allocation and no other package can.
package stagekey

// Key finds the reporter of stages in a context.
type Key struct{}

// Members finds the contexts of the members, a []context.Context, in the context of a call for many elements: a request tracker
// looks for them, and links no operator.
type Members struct{}
