//go:build !race

package core

// raceDetector reports whether the race detector is on, which makes everything some ten
// times slower.
const raceDetector = false
