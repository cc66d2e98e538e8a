package suite

import (
	"flag"
	"strconv"
)

// SetParallel sets how many parallel tests run at once, unless the flag -parallel does:
// short, or full if [Full] is true. TestMain calls it where most tests wait.
func SetParallel(short, full int) {
	flag.Parse()
	n := short
	if Full() {
		n = full
	}
	f := flag.Lookup("test.parallel")
	if f.Value.String() == f.DefValue {
		_ = f.Value.Set(strconv.Itoa(n))
	}
}
