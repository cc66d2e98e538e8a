// Package codectest has a conformance suite for codecs: the rules that weir relies on,
// for its own codecs and for yours.
//
//	func TestMyCodec(t *testing.T) {
//		codectest.Run(t, MyCodec{}, nil, Row{}, Row{Key: "a", Values: []int{1}})
//	}
//
// Run it with -race: some rules are about calls from many goroutines.
package codectest
