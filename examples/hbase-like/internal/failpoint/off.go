//go:build !failpoint || !unix

package failpoint

// Arm does nothing: this binary has no failpoints.
func Arm() {}
