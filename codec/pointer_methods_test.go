package codec_test

import (
	"encoding/gob"
	"math/big"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/codec/codectest"
)

// Accounts encode themselves by different pairs of pointer methods. Their field is
// unexported, so a codec that does not call the methods loses it.
type (
	jsonAccount   struct{ n int }
	textAccount   struct{ n int }
	gobAccount    struct{ n int }
	binaryAccount struct{ n int }
)

func readInt(n *int, b []byte) (err error) {
	*n, err = strconv.Atoi(string(b))
	return err
}

func writeInt(n int) ([]byte, error) { return []byte(strconv.Itoa(n)), nil }

func (a *jsonAccount) MarshalJSON() ([]byte, error)     { return writeInt(a.n) }
func (a *jsonAccount) UnmarshalJSON(b []byte) error     { return readInt(&a.n, b) }
func (a *textAccount) MarshalText() ([]byte, error)     { return writeInt(a.n) }
func (a *textAccount) UnmarshalText(b []byte) error     { return readInt(&a.n, b) }
func (a *gobAccount) GobEncode() ([]byte, error)        { return writeInt(a.n) }
func (a *gobAccount) GobDecode(b []byte) error          { return readInt(&a.n, b) }
func (a *binaryAccount) MarshalBinary() ([]byte, error) { return writeInt(a.n) }
func (a *binaryAccount) UnmarshalBinary(b []byte) error { return readInt(&a.n, b) }

// book holds accounts in every place that is addressable if the book is.
type book[A any] struct {
	One   A
	Ptr   *A
	List  []A
	Two   [2]A
	Inner struct{ Deep A }
	Ptrs  map[string]*A
}

func bookOf[A any](a, b A) book[A] {
	v := book[A]{One: a, Ptr: &b, List: []A{a, b}, Two: [2]A{b, a}, Ptrs: map[string]*A{"a": &a}}
	v.Inner.Deep = b
	return v
}

// A codec calls pointer methods even for values that it received without a pointer.
func TestCodecsCallMethodsOfPointers(t *testing.T) {
	t.Run("JSON, MarshalJSON", func(t *testing.T) {
		keepsAccounts(t, codec.JSON[jsonAccount](), codec.JSON[book[jsonAccount]](), jsonAccount{7}, jsonAccount{8})
	})
	t.Run("JSON, MarshalText", func(t *testing.T) {
		keepsAccounts(t, codec.JSON[textAccount](), codec.JSON[book[textAccount]](), textAccount{7}, textAccount{8})
	})
	t.Run("JSON, big.Int", func(t *testing.T) {
		keepsAccounts(t, codec.JSON[big.Int](), codec.JSON[book[big.Int]](), *big.NewInt(7), *big.NewInt(-8))
	})
	t.Run("Gob, GobEncode", func(t *testing.T) {
		keepsAccounts(t, codec.Gob[gobAccount](), codec.Gob[book[gobAccount]](), gobAccount{7}, gobAccount{8})
	})
	t.Run("Gob, MarshalBinary", func(t *testing.T) {
		keepsAccounts(t, codec.Gob[binaryAccount](), codec.Gob[book[binaryAccount]](), binaryAccount{7}, binaryAccount{8})
	})
	t.Run("default, MarshalText", func(t *testing.T) {
		keepsAccounts(t, codec.Default[textAccount](), codec.Default[book[textAccount]](), textAccount{7}, textAccount{8})
	})
}

func keepsAccounts[A any](t *testing.T, one codec.Codec[A], books codec.Codec[book[A]], a, b A) {
	t.Helper()
	codectest.Run(t, one, nil, a, b)
	codectest.Run(t, books, nil, bookOf(a, b), bookOf(b, a))
}

// A value in a map or an interface is not addressable. A codec refuses it instead of
// skipping its methods.
func TestCodecsOfValuesWithoutAnAddress(t *testing.T) {
	_, err := codec.Gob[map[string]gobAccount]().Append(nil, map[string]gobAccount{"a": {7}})
	require.ErrorContains(t, err, "unaddressable value of type *codec_test.gobAccount")
	gob.Register(gobAccount{})
	_, err = codec.Gob[any]().Append(nil, gobAccount{7})
	require.ErrorContains(t, err, "unaddressable value of type *codec_test.gobAccount")
}

// hexKey is a map key with pointer methods; valueKey has value methods.
type (
	hexKey   int
	valueKey int
)

func (k *hexKey) MarshalText() ([]byte, error)   { return strconv.AppendInt(nil, int64(*k), 16), nil }
func (k *hexKey) UnmarshalText(b []byte) error   { return readHex(k, b) }
func (k valueKey) MarshalText() ([]byte, error)  { return strconv.AppendInt(nil, int64(k), 16), nil }
func (k *valueKey) UnmarshalText(b []byte) error { return readHex(k, b) }

func readHex[K ~int](k *K, b []byte) error {
	n, err := strconv.ParseInt(string(b), 16, 0)
	*k = K(n)
	return err
}

// In maps encoding/json silently skips pointer methods.
func TestJSONRefusesMapsWhoseMethodsAreNotCalled(t *testing.T) {
	type tree struct {
		Children []*tree
		Ptrs     map[string]*jsonAccount
		Skipped  map[string]jsonAccount `json:"-"`
		hidden   map[string]jsonAccount
		ByName   map[string][1]struct{ Deep textAccount }
	}
	_ = tree{}.hidden
	err := refusal(codec.JSON[tree])
	var codecErr *codec.Error
	require.ErrorAs(t, err, &codecErr)
	assert.Equal(t, ".ByName[][].Deep", codecErr.Path)
	assert.Equal(t, "codec of codec_test.tree: .ByName[][].Deep: MarshalText of codec_test.textAccount has a "+
		"pointer receiver, and encoding/json does not call it in a map: let the map hold pointers", err.Error())

	err = refusal(codec.JSON[map[string]jsonAccount])
	require.ErrorContains(t, err, "[]: MarshalJSON of codec_test.jsonAccount")
	err = refusal(codec.JSON[[]map[string]big.Int])
	require.ErrorContains(t, err, "[][]: MarshalJSON of big.Int")
	err = refusal(codec.JSON[map[hexKey]int])
	require.ErrorContains(t, err, "[key]: MarshalText of codec_test.hexKey")

	t.Run("no refusal", func(t *testing.T) {
		type cache struct {
			Ptrs   map[string]*jsonAccount
			Lists  map[string][]jsonAccount // elements of a slice are addressable
			ByKey  map[valueKey]int
			Nested map[string]map[string]*cache
		}
		codectest.Run(t, codec.JSON[cache](), nil, cache{}, cache{
			Ptrs:  map[string]*jsonAccount{"a": {7}},
			Lists: map[string][]jsonAccount{"b": {{8}}},
			ByKey: map[valueKey]int{31: 1},
		})
	})
}
