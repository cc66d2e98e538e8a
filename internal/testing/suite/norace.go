//go:build !race

package suite

// Race reports whether the race detector is on. With it, single-goroutine tests that try
// every case try only some of them. The run without it tries all.
const Race = false
