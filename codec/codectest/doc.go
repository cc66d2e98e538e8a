// Package codectest contains a conformance suite for codecs.
//
//	func TestMyCodec(t *testing.T) {
//		codectest.Run(t, MyCodec{}, nil, Row{}, Row{Key: "a", Values: []int{1}})
//	}
//
// Run it with -race.
package codectest
