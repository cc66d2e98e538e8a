package codec_test

import (
	"fmt"
	"log"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
)

// Values stored by one version of a program are read by the next one: fields are matched
// by name.
func ExampleDefault() {
	type rowV1 struct {
		Key     string
		Retries int32
		Unused  []byte
	}
	type rowV2 struct {
		ID      string `json:"Key"` // renamed
		Retries int    // wider
		Comment string // new
	}

	v1 := codec.Default[rowV1]()
	state, err := participant.MarshalState(v1, rowV1{Key: "WF-7", Retries: 2, Unused: []byte("gone")})
	if err != nil {
		log.Fatal(err)
	}

	v2 := codec.Default[rowV2]()
	row, err := participant.UnmarshalState(v2, state)
	fmt.Printf("%+v %v\n", row, err)

	// A type that cannot be restored exactly is refused when the codec is made.
	type client struct {
		Name string
		Done func()
	}
	defer func() { fmt.Println(recover()) }()
	codec.Default[client]()
	// Output:
	// {ID:WF-7 Retries:2 Comment:} <nil>
	// codec of codec_test.client: .Done: JSON has no form for func()
}
