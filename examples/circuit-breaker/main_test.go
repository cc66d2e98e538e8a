package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The program checks itself: nothing is sent twice, nothing gets lost, and the breaker has something to do.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(&out), "%s", &out)
	text := out.String()
	require.Contains(t, text, "breaker: open, was closed")
	require.Contains(t, text, "breaker: closed, was half-open")
	require.Regexp(t, `in doubt: sent, no answer +[1-9]`, text)
	require.Regexp(t, `calls the breaker refused +[1-9]`, text)
	require.Regexp(t, `requests the bank received +600\n`, text)
	require.Regexp(t, `payments received twice +0\n`, text)
}
