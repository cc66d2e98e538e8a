// Package testhook lets tests of this module stop a program where no option of a public
// package does.
package testhook

import "sync/atomic"

var storeStep atomic.Pointer[func(step string)]

// OnStoreStep makes every directory of checkpoints that is opened from now on call step
// before it changes the disk. The steps of a Save are "create", "write" (one or more
// times), "sync", "rename", "syncdir", and "remove" for every old file. It is for tests
// that kill their own process there.
func OnStoreStep(step func(step string)) { storeStep.Store(&step) }

// StoreStep returns the function of OnStoreStep, or one that does nothing.
func StoreStep() func(step string) {
	if step := storeStep.Load(); step != nil {
		return *step
	}
	return func(string) {}
}
