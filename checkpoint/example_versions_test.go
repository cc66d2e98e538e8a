package checkpoint_test

import (
	"fmt"
	"log"

	"github.com/weirflow/weir/checkpoint"
)

// What one version of a program has stored, the next one reads: fields are matched by their names.
func ExampleDefaultCodec() {
	type rowV1 struct {
		Key     string
		Retries int32
		Unused  []byte
	}
	type rowV2 struct {
		ID      string `weir:"Key"` // renamed
		Retries int    // wider
		Comment string // new
	}

	v1, err := checkpoint.DefaultCodec[rowV1]()
	if err != nil {
		log.Fatal(err)
	}
	state, err := checkpoint.MarshalState(v1, rowV1{Key: "WF-7", Retries: 2, Unused: []byte("gone")})
	if err != nil {
		log.Fatal(err)
	}

	v2, err := checkpoint.DefaultCodec[rowV2]()
	if err != nil {
		log.Fatal(err)
	}
	row, err := checkpoint.UnmarshalState(v2, state)
	fmt.Printf("%+v %v\n", row, err)

	// What cannot be restored exactly is refused when the codec is made.
	type client struct {
		Name string
		Done func()
	}
	_, err = checkpoint.DefaultCodec[client]()
	fmt.Println(err)
	// Output:
	// {ID:WF-7 Retries:2 Comment:} <nil>
	// checkpoint: codec of checkpoint_test.client: .Done: the type cannot be stored: a func cannot be stored
}
