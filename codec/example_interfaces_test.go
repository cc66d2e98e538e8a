package codec_test

import (
	"fmt"
	"log"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
)

type shape interface{ Area() float64 }

type square struct{ Side float64 }

func (s square) Area() float64 { return s.Side * s.Side }

func init() { codec.Register[square]() }

// Types that travel in interfaces are registered, as with encoding/gob.
func ExampleRegister() {
	rows := codec.Default[[]shape]()
	state, err := participant.MarshalState(rows, []shape{square{2}, nil, square{3}})
	if err != nil {
		log.Fatal(err)
	}
	shapes, err := participant.UnmarshalState(rows, state)
	fmt.Printf("%#v %v\n", shapes, err)
	// Output:
	// []codec_test.shape{codec_test.square{Side:2}, codec_test.shape(nil), codec_test.square{Side:3}} <nil>
}
