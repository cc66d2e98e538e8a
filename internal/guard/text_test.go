package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/guard"
)

func TestTextHasNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"no answer": "no answer",
		`Post "https://pay.example/v1?token=s3cret": dial tcp 10.0.0.1:443: refused`: `Post "https://pay.example/v1?xxxxx": dial tcp 10.0.0.1:443: refused`,
		"connect postgres://ann:s3cret@db:5432/shop: EOF":                            "connect postgres://ann:xxxxx@db:5432/shop: EOF",
		"nats://s3cret@a:4222, nats://u:s3cret@b:4222":                               "nats://xxxxx@a:4222, nats://u:xxxxx@b:4222",
		"https://ann:s3cret@":                                        "https://ann:xxxxx@",
		"https://host:8080/users/ann@example.com#s3cret":             "https://host:8080/users/ann@example.com#xxxxx",
		`parse "postgres://ann:s3cret/s3cret@db/shop": invalid port`: `parse "postgres://ann:xxxxx@db/shop": invalid port`,
		`parse "postgres://ann:s3cret?s3cret@db/shop": invalid port`: `parse "postgres://ann:xxxxx@db/shop": invalid port`,
		"https://ann:s3c@ret@host/?a@b":                              "https://ann:xxxxx@host/?xxxxx",
		"(https://[::1]:80/?q=s3cret)":                               "(https://[::1]:80/?xxxxx",
		// Several servers without spaces, as nats.Connect takes them.
		"nats://u:s3cret@a:4222,nats://u:s3cret@b:4222,tls://s3cret@c": "nats://u:xxxxx@a:4222,nats://u:xxxxx@b:4222,tls://xxxxx@c",
		// Characters that net/http takes in a query.
		`Get "https://h/p?a='x'&key=s3cret": EOF`:          `Get "https://h/p?xxxxx": EOF`,
		"Get \"https://h/p?a=<b>`c`&key=s3cret\": EOF":     `Get "https://h/p?xxxxx": EOF`,
		`Get "https://h/p?a=b c&key=s3cret": EOF`:          `Get "https://h/p?xxxxx": EOF`,
		`Get "https://h/p?a=\"b c\"&key=s3cret": EOF`:      `Get "https://h/p?xxxxx": EOF`,
		`two: "https://h/?s3cret" and "https://h/?s3cret"`: `two: "https://h/?xxxxx" and "https://h/?xxxxx"`,
		"https://h/p?next=https://ann:s3cret@h/?s3cret":    "https://h/p?xxxxx",
		`{"url":"https://h/p?key=s3cret","n":1}`:           `{"url":"https://h/p?xxxxx","n":1}`,
		"https://user-only@host/path":                      "https://xxxxx@host/path",
	} {
		assert.Equal(t, want, guard.Text(errors.New(text)))
	}
	assert.Contains(t, guard.Text(breaks{}), "PANIC")
}

// Law J3: a text cannot hide characters.
func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"Gänse\n\t✓": "Gänse\\n\t✓", "\x1b[31m\u202e\u2066\x00": `\x1b[31m\u202e\u2066\x00`, "\xff\xc3": `\xff\xc3`, "\ufffd": "\ufffd", "": "",
	} {
		assert.Equal(t, want, guard.Visible(text, "\t"))
	}
}

// An error of net/http has a URL, which may lack a scheme.
func TestText_URLWithoutScheme(t *testing.T) {
	for _, address := range []string{"api.example/v1?key=s3cret", "/v1?key=s3cret", "//ann:s3cret@api.example/v1", "https://ann:s3cret@h/ x?s3cret"} {
		text := guard.Text(fmt.Errorf("charge: %w", &url.Error{Op: "Get", URL: address, Err: errors.New("unsupported protocol scheme")}))
		assert.NotContains(t, text, "s3cret")
		assert.Contains(t, text, "unsupported protocol scheme")
	}
}

func TestURL(t *testing.T) {
	u, err := url.Parse("https://ann:s3cret@host:8080/charges/7?key=s3cret#s3cret")
	require.NoError(t, err)
	assert.Equal(t, "https://ann:xxxxx@host:8080/charges/7?xxxxx", guard.URL(u))
	assert.Equal(t, "https://ann:s3cret@host:8080/charges/7?key=s3cret#s3cret", u.String(), "it is not changed")
	u, err = url.Parse("https://host/charges?")
	require.NoError(t, err)
	assert.Equal(t, "https://host/charges?", guard.URL(u))
	assert.Empty(t, guard.URL(nil))
}

type secretError struct{ about string }

func (e *secretError) Error() string { return e.about + ": https://h/?key=s3cret" }

type secretValue struct{}

func (secretValue) LogValue() slog.Value {
	return slog.GroupValue(slog.Any("cause", &secretError{"inner"}), slog.Int("n", 3))
}

// No attribute of a line has the secret of a URL, and an error keeps its type.
func TestLogger(t *testing.T) {
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			log := guard.Logger(slog.New(handler(&b)))
			log.Warn("call https://h/?key=s3cret", "error", &secretError{"outer"}, "text", "nats://s3cret@h", slog.Group("g", "error", &secretError{"grouped"}), "value", secretValue{}, "n", 5)
			log.With("error", &secretError{"with"}).WithGroup("group").Info("plain", "error", breaks{})
			assert.NotContains(t, b.String(), "s3cret")
			for _, want := range []string{"outer", "grouped", "inner", "with", "PANIC", "https://h/?xxxxx", "nats://xxxxx@h"} {
				assert.Contains(t, b.String(), want)
			}
		})
	}
	got := &kept{}
	log := guard.Logger(slog.New(got))
	log.Warn("failed", "error", &secretError{"outer"}, "plain", context.Canceled)
	found, ok := errors.AsType[*secretError](got.attrs["error"].(error))
	assert.True(t, ok)
	assert.Equal(t, "outer", found.about)
	assert.Equal(t, context.Canceled, got.attrs["plain"], "an error without secrets is passed on unchanged")
	assert.Same(t, log, guard.Logger(log))
	assert.NotNil(t, guard.Logger(nil))
}

// kept is a handler that keeps the attributes of the last line.
type kept struct {
	slog.Handler
	attrs map[string]any
}

func (k *kept) Enabled(context.Context, slog.Level) bool { return true }

func (k *kept) Handle(_ context.Context, r slog.Record) error {
	k.attrs = map[string]any{}
	r.Attrs(func(a slog.Attr) bool {
		k.attrs[a.Key] = a.Value.Any()
		return true
	})
	return nil
}

type breaks struct{}

func (breaks) Error() string { panic("no") }

func TestShown(t *testing.T) {
	require.Equal(t, "order-17", guard.Shown("order-17"))
	require.Equal(t, strings.Repeat("x", 100), guard.Shown(strings.Repeat("x", 100)))
	require.Equal(t, strings.Repeat("x", 100)+"…", guard.Shown(strings.Repeat("x", 2000)))
	require.Equal(t, strings.Repeat("x", 99)+"…", guard.Shown(strings.Repeat("x", 99)+"é"), "cut between two characters")
	require.Equal(t, strings.Repeat("\xff", 100)+"…", guard.Shown(strings.Repeat("\xff", 101)), "not text")
}
