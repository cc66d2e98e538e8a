//go:build !failpoint || !unix

package failpoint

import "github.com/weirflow/weir/checkpoint"

// StoreOptions returns none: this binary has no failpoints.
func StoreOptions() []checkpoint.StoreOption { return nil }
