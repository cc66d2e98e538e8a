//go:build !failpoint || !unix

package main

import "github.com/weirflow/weir/checkpoint"

// failpoints are for the tests: see failpoint_on.go.
func failpoints() []checkpoint.StoreOption { return nil }
