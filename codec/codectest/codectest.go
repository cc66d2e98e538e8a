package codectest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/testing/suite"
)

// Run checks a codec against the rules of [codec.Codec], and of [codec.SchemaCodec] if it
// is such a codec, in a subtest for each rule. The values are examples that it must
// accept, at least two of them different. Fill every field: a lost field is decoded as
// its zero value. equal compares a value before and after; nil means reflect.DeepEqual.
func Run[T any](t *testing.T, c codec.Codec[T], equal func(a, b T) bool, values ...T) {
	t.Helper()
	s := codecSample[T]{codec: c, equal: suite.EqualOr(equal), values: values}
	if !slices.ContainsFunc(values, func(v T) bool { return !s.equal(v, values[0]) }) {
		t.Fatalf("codectest: Run needs two different values at least, got %d", len(values))
	}
	_, hasSchema := c.(codec.SchemaCodec[T])
	for _, r := range codecRules[T]() {
		t.Run(r.name, func(t *testing.T) {
			if r.schema && !hasSchema {
				t.Skip("the codec has no schema")
			}
			if err := r.check(s); err != nil {
				t.Error(err)
			}
		})
	}
}

type codecSample[T any] struct {
	codec  codec.Codec[T]
	equal  func(a, b T) bool
	values []T
}

type codecRule[T any] struct {
	name   string
	check  func(codecSample[T]) error
	schema bool // the rule is about schemas
}

func codecRules[T any]() []codecRule[T] {
	return []codecRule[T]{
		{name: "a value comes back", check: codecSample[T].comesBack},
		{name: "bytes are appended", check: codecSample[T].appends},
		{name: "the buffer belongs to the caller", check: codecSample[T].keepsNoBuffer},
		{name: "what is decoded stays", check: codecSample[T].keepsNoSource},
		{name: "damaged bytes do no harm", check: codecSample[T].bearsDamage},
		{name: "concurrent use", check: codecSample[T].concurrently},
		{name: "a schema of another codec is refused", check: codecSample[T].refusesSchemas, schema: true},
		{name: "a damaged schema does no harm", check: codecSample[T].bearsDamagedSchemas, schema: true},
	}
}

// reader returns the decoder, as after a restart.
func (s codecSample[T]) reader() (codec.Codec[T], error) {
	r, err := codec.WithSchema(s.codec, bytes.Clone(codec.SchemaOf(s.codec)))
	if err != nil {
		return nil, fmt.Errorf("the codec's own schema is refused: %w", err)
	}
	return r, nil
}

func (s codecSample[T]) each(f func(r codec.Codec[T], v T, b []byte) error) error {
	r, err := s.reader()
	if err != nil {
		return err
	}
	for i, v := range s.values {
		b, err := s.codec.Append(nil, v)
		if err != nil {
			return fmt.Errorf("value %d: Append: %w", i, err)
		}
		if err := f(r, v, b); err != nil {
			return fmt.Errorf("value %d: %w", i, err)
		}
	}
	return nil
}

func (s codecSample[T]) holds(r codec.Codec[T], b []byte, v T) error {
	got, err := r.Decode(b)
	switch {
	case err != nil:
		return fmt.Errorf("Decode: %w", err)
	case !s.equal(got, v):
		return fmt.Errorf("Decode returned %+v, want %+v", got, v)
	}
	return nil
}

func (s codecSample[T]) comesBack() error {
	return s.each(func(r codec.Codec[T], v T, b []byte) error { return s.holds(r, b, v) })
}

func (s codecSample[T]) appends() error {
	const prefix = "what was there before"
	return s.each(func(r codec.Codec[T], v T, _ []byte) error {
		for _, room := range []int{0, 1, 1 << 16} {
			dst := append(make([]byte, 0, len(prefix)+room), prefix...)
			b, err := s.codec.Append(dst, v)
			if err != nil {
				return fmt.Errorf("Append to %d bytes with room for %d: %w", len(dst), room, err)
			}
			if !bytes.HasPrefix(b, []byte(prefix)) || string(dst) != prefix {
				return fmt.Errorf("Append to %q with room for %d returned %q", prefix, room, b)
			}
			if err := s.holds(r, b[len(prefix):], v); err != nil {
				return fmt.Errorf("after Append to %d bytes with room for %d: %w", len(dst), room, err)
			}
		}
		return nil
	})
}

func (s codecSample[T]) keepsNoBuffer() error {
	return s.each(func(r codec.Codec[T], v T, buffer []byte) error {
		for range 2 {
			suite.SpoilBytes(buffer)
			var err error
			buffer, err = s.codec.Append(buffer[:0], v)
			if err != nil {
				return fmt.Errorf("Append to a used buffer: %w", err)
			}
			if err := s.holds(r, buffer, v); err != nil {
				return fmt.Errorf("after a change of the bytes that Append has returned: %w", err)
			}
		}
		return nil
	})
}

func (s codecSample[T]) keepsNoSource() error {
	return s.each(func(r codec.Codec[T], v T, b []byte) error {
		src := bytes.Clone(b)
		got, err := r.Decode(src)
		if err != nil {
			return fmt.Errorf("Decode: %w", err)
		}
		if !bytes.Equal(src, b) {
			return errors.New("Decode has changed its source")
		}
		suite.SpoilBytes(src)
		if !s.equal(got, v) {
			return fmt.Errorf("the value has changed with the bytes it was decoded from: it is %+v, want %+v", got, v)
		}
		return nil
	})
}

func (s codecSample[T]) bearsDamage() error {
	return s.each(func(r codec.Codec[T], _ T, b []byte) error {
		return bears(b, func(src []byte) { _, _ = r.Decode(src) })
	})
}

const memoryLimit = 64 << 20

// bears reports an error if decode panics, or allocates much memory, for damaged forms of
// b.
func bears(b []byte, decode func(src []byte)) error {
	for _, src := range suite.Spoiled(b) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := suite.Quiet(func() error { decode(bytes.Clone(src)); return nil }); err != nil {
			return fmt.Errorf("the bytes %x: %w", src, err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > memoryLimit {
			return fmt.Errorf("the bytes %x: decoding them took %d bytes of memory", src, took)
		}
	}
	return nil
}

func (s codecSample[T]) concurrently() error {
	const goroutines, rounds = 4, 20
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range errs {
		wg.Go(func() {
			for range rounds {
				errs[g] = errors.Join(errs[g], suite.Quiet(s.comesBack))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s codecSample[T]) refusesSchemas() error {
	const schema = "the schema of another codec"
	if _, err := codec.WithSchema(s.codec, []byte(schema)); err == nil {
		return fmt.Errorf("the schema %q is accepted", schema)
	}
	return nil
}

func (s codecSample[T]) bearsDamagedSchemas() error {
	v := s.values[0]
	b, err := s.codec.Append(nil, v)
	if err != nil {
		return err
	}
	return bears(codec.SchemaOf(s.codec), func(schema []byte) {
		if r, err := codec.WithSchema(s.codec, schema); err == nil {
			_, _ = r.Decode(b)
		}
	})
}
