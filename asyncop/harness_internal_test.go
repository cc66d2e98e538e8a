package asyncop

import (
	"bytes"
	"errors"
	"regexp"
	"runtime"
	"slices"
)

var errDown = errors.New("down")

var bubbleOf = regexp.MustCompile(`(?m)^goroutine .*(synctest bubble \d+)`)

// bubbleGoroutines counts the goroutines of the caller's bubble. Goroutines of earlier
// tests may still be ending.
func bubbleGoroutines() int {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	all := bubbleOf.FindAllSubmatch(buf, -1)
	return len(slices.DeleteFunc(all, func(m [][]byte) bool { return !bytes.Equal(m[1], all[0][1]) })) // the first is the caller
}
