//go:build !failpoint || !unix

package failpoint

// Arm has no effect: this binary was built without failpoints.
func Arm() {}
