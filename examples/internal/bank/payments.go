package bank

import (
	"errors"
	"io"
)

// ReadPayments reads an input of payments to its end, and closes it.
func ReadPayments(in interface {
	Next() (Payment, error)
	io.Closer
},
) (payments []Payment, err error) {
	defer func() { err = errors.Join(err, in.Close()) }()
	for {
		p, err := in.Next()
		if errors.Is(err, io.EOF) {
			return payments, nil
		}
		if err != nil {
			return nil, err
		}
		payments = append(payments, p)
	}
}
