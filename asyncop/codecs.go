package asyncop

import (
	"fmt"

	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/codec"
)

// newStateCodec returns the codecs that were chosen, and panics if they are not for this operator.
func newStateCodec[IN, OUT any](constructor string, cfg config) drive.StateCodec[IN, OUT] {
	var s drive.StateCodec[IN, OUT]
	var ok bool
	if cfg.inputCodec == nil {
		s.Inputs = defaultInputCodec[IN](constructor)
	} else if s.Inputs, ok = cfg.inputCodec.(codec.Codec[IN]); !ok {
		panic(fmt.Sprintf("asyncop: %s: WithInputCodec: %T is no codec for %T", constructor, cfg.inputCodec, *new(IN)))
	}
	if cfg.resultCodec != nil {
		if s.Results, ok = cfg.resultCodec.(codec.Codec[OUT]); !ok {
			panic(fmt.Sprintf("asyncop: %s: WithResultCodec: %T is no codec for %T", constructor, cfg.resultCodec, *new(OUT)))
		}
	}
	return s
}

// defaultInputCodec returns codec.Default, and names the option to be used if it refuses the type.
func defaultInputCodec[IN any](constructor string) codec.Codec[IN] {
	defer func() {
		if refused := recover(); refused != nil {
			panic(fmt.Sprintf("asyncop: %s: WithCheckpoints needs WithInputCodec: %v", constructor, refused))
		}
	}()
	return codec.Default[IN]()
}
