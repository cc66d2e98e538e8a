package bank

import (
	"errors"
	"io"
)

// ReadAll reads an input to its end and closes it.
func ReadAll[T any](in interface {
	Next() (T, error)
	io.Closer
},
) (all []T, err error) {
	defer func() { err = errors.Join(err, in.Close()) }()
	for {
		v, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
}
