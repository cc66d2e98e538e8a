package guard_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

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
	} {
		assert.Equal(t, want, guard.Text(errors.New(text)))
	}
	assert.Contains(t, guard.Text(breaks{}), "PANIC")
}

// Law J3: nothing in a text is hidden.
func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"Gänse\n\t✓": "Gänse\\n\t✓", "\x1b[31m\u202e\u2066\x00": `\x1b[31m\u202e\u2066\x00`, "\xff\xc3": `\xff\xc3`, "\ufffd": "\ufffd", "": "",
	} {
		assert.Equal(t, want, guard.Visible(text, "\t"))
	}
}

type breaks struct{}

func (breaks) Error() string { panic("no") }
