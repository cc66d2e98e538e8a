// Package testhook lets this module's tests stop a program at points that no public
// option offers.
package testhook

import "sync/atomic"

var storeStep atomic.Pointer[func(step string)]

// OnStoreStep makes checkpoint directories that are opened from now on call step before
// they change the disk. The steps of a Save are "create", "write" (one or more times),
// "sync", "rename", "syncdir", and "remove" for each old file. Tests use it to kill their
// own process at a step.
func OnStoreStep(step func(step string)) { storeStep.Store(&step) }

// StoreStep returns OnStoreStep's function, or an empty one.
func StoreStep() func(step string) {
	if step := storeStep.Load(); step != nil {
		return *step
	}
	return func(string) {}
}
