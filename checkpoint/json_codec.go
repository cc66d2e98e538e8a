package checkpoint

import (
	"bytes"
	"encoding/json"
)

// JSON returns a codec that writes values as encoding/json does: for states that people want to read. It takes more time
// and space than [DefaultCodec], and what JSON cannot express is refused (NaN, complex numbers, channels) or comes back
// changed: strings that are not UTF-8, numbers in an any (all float64), unexported fields (zero), a time's location.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

type jsonCodec[T any] struct{}

func (jsonCodec[T]) Append(dst []byte, v T) ([]byte, error) {
	b := bytes.NewBuffer(dst)
	enc := json.NewEncoder(b) // appends, json.Marshal does not
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, codecError[T]("", err)
	}
	b.Truncate(b.Len() - 1) // a line end
	return b.Bytes(), nil
}

func (jsonCodec[T]) Decode(src []byte) (T, error) {
	var v T
	if err := json.Unmarshal(src, &v); err != nil {
		var zero T
		return zero, codecError[T]("", err)
	}
	return v, nil
}

func (jsonCodec[T]) Schema() []byte { return []byte(schemaJSON) }

func (c jsonCodec[T]) WithSchema(schema []byte) (Codec[T], error) {
	if err := schemaJSON.check(schema); err != nil {
		return nil, codecError[T]("", err)
	}
	return c, nil
}
