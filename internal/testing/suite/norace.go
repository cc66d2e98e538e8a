//go:build !race

package suite

// Race reports whether the race detector is on. With it, single-goroutine tests that try
// every case try only some.
const Race = false
