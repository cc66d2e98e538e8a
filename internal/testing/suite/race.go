//go:build race

package suite

// Race reports whether the race detector is on. Under it, tests of one goroutine that try
// every case try some: the run without it tries all.
const Race = true
