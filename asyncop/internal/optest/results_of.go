package optest

import (
	"strings"

	"github.com/weirflow/weir/asyncop"
)

// ElementsOf returns a pull function for the letters of s.
func ElementsOf(s string) func() (string, bool) { return asyncop.FromSlice(strings.Split(s, "")) }

// Chain ranges over the results on a goroutine of its own. The returned channel gets them
// as a text, with the last error.
func Chain(op *asyncop.AsyncWaitOperator[string, string], next func() (string, bool), body func(string)) <-chan string {
	all := make(chan string, 1)
	go func() {
		var got []string
		for v, err := range op.ResultsOf(next) {
			if err != nil {
				got = append(got, err.Error())
				break
			}
			got = append(got, v)
			if body != nil {
				body(v)
			}
		}
		all <- strings.Join(got, " ")
	}()
	return all
}
