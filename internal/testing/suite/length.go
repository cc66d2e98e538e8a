package suite

import (
	"os"
	"testing"
)

// lengthEnv is the environment variable with the length of tests that kill processes,
// process many messages, or need a real server. By default they are short.
const lengthEnv = "WEIR_LONG"

// Full reports whether such tests run at full length, as by .ci/run, which sets
// WEIR_LONG=ci. It is false with -short.
func Full() bool { return os.Getenv(lengthEnv) != "" && !testing.Short() }

// Long reports whether such tests run with the numbers of bench/MEASUREMENTS.md, such as
// a million messages and a hundred kills: WEIR_LONG=1. That takes hours.
func Long() bool {
	length := os.Getenv(lengthEnv)
	return length != "" && length != "ci"
}
