package checkpoint_test

import (
	"fmt"
	"log"

	"github.com/weirflow/weir/checkpoint"
)

type shape interface{ Area() float64 }

type square struct{ Side float64 }

func (s square) Area() float64 { return s.Side * s.Side }

func init() { checkpoint.Register[square]() }

// Types that travel in interfaces are registered, as with encoding/gob.
func ExampleRegister() {
	codec, err := checkpoint.DefaultCodec[[]shape]()
	if err != nil {
		log.Fatal(err)
	}
	state, err := checkpoint.MarshalState(codec, []shape{square{2}, nil, square{3}})
	if err != nil {
		log.Fatal(err)
	}
	shapes, err := checkpoint.UnmarshalState(codec, state)
	fmt.Printf("%#v %v\n", shapes, err)
	// Output:
	// []checkpoint_test.shape{checkpoint_test.square{Side:2}, checkpoint_test.shape(nil), checkpoint_test.square{Side:3}} <nil>
}
