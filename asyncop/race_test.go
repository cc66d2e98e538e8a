//go:build race

package asyncop_test

// raceDetector reports whether the race detector is on, which makes everything some ten times slower.
const raceDetector = true
