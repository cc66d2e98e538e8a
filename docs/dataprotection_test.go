package docs_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/codec/codectest"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// sealed encrypts what inner encodes. keys[0] encrypts; the others, which are older, only
// decrypt.
func sealed[T any](inner codec.Codec[T], keys ...cipher.AEAD) codec.Codec[T] {
	return codec.Func(
		func(dst []byte, v T) ([]byte, error) {
			plain, err := inner.Append(nil, v)
			if err != nil {
				return dst, err
			}
			return keys[0].Seal(dst, nil, plain, nil), nil // NewGCMWithRandomNonce puts the nonce in front
		},
		func(src []byte) (v T, err error) {
			for _, key := range keys {
				if plain, err := key.Open(nil, nil, src, nil); err == nil {
					return inner.Decode(plain)
				}
			}
			return v, errors.New("no key decrypts this payload")
		})
}

// newKey makes a key of 32 secret bytes, which your key store has.
func newKey(secret []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func randomKey() cipher.AEAD {
	secret := make([]byte, 32)
	_, err := rand.Read(secret)
	check(err)
	key, err := newKey(secret)
	check(err)
	return key
}

func TestSealed(t *testing.T) {
	current, old := randomKey(), randomKey()
	codectest.Run(t, sealed(codec.JSON[string](), current), nil, "", "card 4711")
	before, err := sealed(codec.JSON[string](), old).Append(nil, "card 4711")
	require.NoError(t, err)
	v, err := sealed(codec.JSON[string](), current, old).Decode(before)
	require.NoError(t, err)
	require.Equal(t, "card 4711", v)
	_, err = sealed(codec.JSON[string](), current).Decode(before)
	require.Error(t, err)
}

func Example_sealed() {
	ctx := context.Background()
	engine := memory.Open()
	key := randomKey()
	orders := delivery.NewQueue[order](engine, "orders", delivery.WithCodec(sealed(codec.JSON[order](), key)))
	check(orders.Put(ctx, order{"4711"}, delivery.ID("order-17"))) // the id is stored in the clear
	entries, err := engine.List(ctx, "orders", store.Filter{}, store.Page{Max: 1})
	check(err)
	fmt.Println(bytes.Contains(entries[0].Payload, []byte("4711")))
	// Output:
	// false
}
