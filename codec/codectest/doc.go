// Package codectest contains a conformance suite for codecs: the rules that weir requires
// of its own codecs and of yours.
//
//	func TestMyCodec(t *testing.T) {
//		codectest.Run(t, MyCodec{}, nil, Row{}, Row{Key: "a", Values: []int{1}})
//	}
//
// Run it with -race, because some rules are about calls from many goroutines.
package codectest
