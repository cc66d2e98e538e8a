package netretry_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

var none predicates.Reason

func classify(err error, reported predicates.Stage) (predicates.Reason, predicates.Stage) {
	a := &predicates.Attempt[int]{Err: err, Stage: reported}
	reason, ok := netretry.Classifier[int]()(a)
	if !ok {
		return none, a.Stage
	}
	return reason, a.Stage
}

// timeoutError is a timeout that is not a net.Error.
type timeoutError struct{ timeout bool }

func (e timeoutError) Error() string { return "maybe a timeout" }
func (e timeoutError) Timeout() bool { return e.timeout }

func op(name string, err error) error { return &net.OpError{Op: name, Net: "tcp", Err: err} }
func syscallError(name string, errno syscall.Errno) error {
	return os.NewSyscallError(name, errno)
}

func TestKindOf(t *testing.T) {
	tests := []struct {
		err  error
		want netretry.Kind
	}{
		{nil, netretry.Other},
		{errors.New("whatever"), netretry.Other},
		{context.Canceled, netretry.Other},
		{op("dial", context.Canceled), netretry.Other},
		{errors.Join(io.EOF, context.Canceled), netretry.Other},

		{op("dial", syscallError("connect", syscall.ECONNREFUSED)), netretry.Dial},
		{op("dial", syscallError("connect", syscall.EHOSTUNREACH)), netretry.Dial},
		{op("dial", syscallError("connect", syscall.ENETUNREACH)), netretry.Dial},
		{op("dial", syscallError("connect", syscall.EADDRNOTAVAIL)), netretry.Dial},
		{op("dial", syscallError("socket", syscall.EMFILE)), netretry.Dial},
		{op("dial", os.ErrDeadlineExceeded), netretry.Dial},         // a timeout, but of dialing
		{op("dial", context.DeadlineExceeded), netretry.Dial},       // likewise
		{op("proxyconnect", op("dial", io.EOF)), netretry.Dial},     // the proxy
		{op("proxyconnect", op("read", io.EOF)), netretry.Dial},     // the proxy, too
		{op("socks connect", errors.New("no")), netretry.Dial},      // another proxy
		{op("dial", &net.DNSError{IsTimeout: true}), netretry.Dial}, //
		{&net.DNSError{IsTemporary: true}, netretry.Dial},
		{syscallError("connect", syscall.ECONNREFUSED), netretry.Dial},
		{syscallError("connectex", syscall.ECONNREFUSED), netretry.Dial}, // Windows
		{syscallError("connect", syscall.ETIMEDOUT), netretry.Dial},
		{driver.ErrBadConn, netretry.Dial}, // by its contract the operation was not performed
		{errors.Join(driver.ErrBadConn), netretry.Dial},

		{io.EOF, netretry.Lost},
		{io.ErrUnexpectedEOF, netretry.Lost},
		{io.ErrClosedPipe, netretry.Lost},
		{net.ErrClosed, netretry.Lost},
		{op("read", syscallError("read", syscall.ECONNRESET)), netretry.Lost},
		{op("write", syscallError("write", syscall.EPIPE)), netretry.Lost},
		{op("write", syscallError("write", syscall.ECONNABORTED)), netretry.Lost},
		{op("read", errors.New("wsarecv: forcibly closed")), netretry.Lost},     // no number that is known here
		{op("read", syscallError("read", syscall.ECONNREFUSED)), netretry.Lost}, // UDP: sent before it was refused
		{syscallError("read", syscall.ECONNREFUSED), netretry.Lost},
		{syscallError("recvfrom", syscall.ECONNREFUSED), netretry.Lost},
		{syscallError("sendto", syscall.ECONNREFUSED), netretry.Lost}, // of an earlier datagram
		{syscall.ECONNREFUSED, netretry.Lost},                         // of which system call?

		{context.DeadlineExceeded, netretry.Timeout},
		{os.ErrDeadlineExceeded, netretry.Timeout},
		{op("read", os.ErrDeadlineExceeded), netretry.Timeout},
		{op("write", syscallError("write", syscall.ETIMEDOUT)), netretry.Timeout},
		{timeoutError{true}, netretry.Timeout},
		{timeoutError{false}, netretry.Other},

		{&net.DNSError{IsNotFound: true}, netretry.Other},
		{op("dial", &net.DNSError{IsNotFound: true}), netretry.Other},
		{op("dial", &net.AddrError{Err: "missing port"}), netretry.Other},
		{op("dial", net.InvalidAddrError("x")), netretry.Other},
		{op("dial", net.UnknownNetworkError("x")), netretry.Other},
		{op("dial", &net.ParseError{}), netretry.Other},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, netretry.Other},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, netretry.Other},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, netretry.Other},
		{x509.CertificateInvalidError{}, netretry.Other},
		{op("remote error", tls.AlertError(116)), netretry.Other},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, netretry.KindOf(tt.err), "%#v", tt.err)
		if tt.err != nil {
			wrapped := fmt.Errorf("get: %w", &url.Error{Op: "Get", URL: "http://x", Err: tt.err})
			assert.Equal(t, tt.want, netretry.KindOf(wrapped), "%#v", tt.err)
		}
	}
	for kind, text := range map[netretry.Kind]string{
		netretry.Other: "other", netretry.Dial: "not connected", netretry.Lost: "lost", netretry.Timeout: "timed out", 9: "Kind(9)",
	} {
		assert.Equal(t, text, kind.String())
	}
}

// The table of the package documentation.
func TestReasonsByKindAndStage(t *testing.T) {
	const (
		unreported = predicates.Unreported
		dispatch   = predicates.ClientDispatch
		network    = predicates.NetworkTime
		response   = predicates.ResponseReceived
	)
	refused := op("dial", syscallError("connect", syscall.ECONNREFUSED))
	inClient := &url.Error{Op: "Post", URL: "http://x", Err: refused}
	at := func(s predicates.Stage, err error) error { return &predicates.StageError{Stage: s, Err: err} }
	tests := []struct {
		err       error
		reported  predicates.Stage
		want      predicates.Reason
		wantStage predicates.Stage
	}{
		{refused, unreported, netretry.NotConnected, dispatch},
		{refused, dispatch, netretry.NotConnected, dispatch},
		{refused, network, netretry.HopNotConnected, network}, // another request of the call was sent
		{refused, response, netretry.HopNotConnected, response},

		{inClient, unreported, netretry.HopNotConnected, unreported}, // after a redirect?
		{inClient, dispatch, netretry.NotConnected, dispatch},
		{inClient, network, netretry.HopNotConnected, network},
		{&url.Error{Err: at(dispatch, refused)}, unreported, netretry.NotConnected, dispatch},  // no
		{&url.Error{Err: at(network, refused)}, unreported, netretry.HopNotConnected, network}, // yes
		{&url.Error{Err: at(network, refused)}, dispatch, netretry.HopNotConnected, network},

		{io.EOF, unreported, netretry.ConnectionLost, unreported},
		{io.EOF, dispatch, netretry.NotSent, dispatch},
		{at(dispatch, io.EOF), unreported, netretry.NotSent, dispatch},
		{io.EOF, network, netretry.ConnectionLost, network},
		{io.EOF, response, netretry.ConnectionLost, response},

		{context.DeadlineExceeded, unreported, netretry.TimedOut, unreported},
		{context.DeadlineExceeded, dispatch, netretry.NotSent, dispatch},
		{context.DeadlineExceeded, network, netretry.TimedOut, network},
		{context.DeadlineExceeded, response, netretry.TimedOut, response},

		{nil, unreported, none, unreported},
		{errors.New("whatever"), dispatch, none, dispatch},
		{context.Canceled, dispatch, none, dispatch},
	}
	for _, tt := range tests {
		reason, stage := classify(tt.err, tt.reported)
		assert.Equal(t, tt.want, reason, "%v, reported %v", tt.err, tt.reported)
		assert.Equal(t, tt.wantStage, stage, "%v, reported %v", tt.err, tt.reported)
	}
}

// If timeouts counted as "not connected", calls that were sent would be repeated.
func TestTimeoutsMayHaveBeenSent(t *testing.T) {
	for _, err := range []error{
		context.DeadlineExceeded, os.ErrDeadlineExceeded, op("read", os.ErrDeadlineExceeded),
		timeoutError{true},
		&url.Error{Op: "Post", Err: context.DeadlineExceeded},
		&url.Error{Op: "Post", Err: op("dial", os.ErrDeadlineExceeded)}, // perhaps after a redirect
	} {
		for _, stage := range []predicates.Stage{predicates.Unreported, predicates.NetworkTime, predicates.ResponseReceived} {
			reason, _ := classify(err, stage)
			assert.False(t, reason.IsZero(), "%v", err)
			assert.False(t, reason.AllowsNonIdempotentRetry(), "%v: %v", err, reason)
		}
	}
}

func TestReasons(t *testing.T) {
	want := map[string]bool{ // name → allows non-idempotent retry
		"CONNECTION_NOT_ESTABLISHED": true,
		"REQUEST_NOT_SENT":           true,
		"HOP_NOT_CONNECTED":          false,
		"CONNECTION_LOST_IN_FLIGHT":  false,
		"TIMED_OUT_IN_FLIGHT":        false,
	}
	for _, r := range netretry.Reasons() {
		allows, ok := want[r.Name()]
		assert.True(t, ok, "%v", r)
		assert.Equal(t, allows, r.AllowsNonIdempotentRetry(), "%v", r)
		assert.False(t, r.AlwaysRetry(), "%v", r)
	}
	assert.Len(t, netretry.Reasons(), len(want))
}

func TestClassifierOf(t *testing.T) {
	pool := errors.New("no connection in the pool")
	c := netretry.ClassifierOf[int](func(err error) netretry.Kind {
		if errors.Is(err, pool) {
			return netretry.Dial
		}
		return netretry.KindOf(err)
	})
	reason, ok := c(&predicates.Attempt[int]{Err: pool})
	assert.True(t, ok)
	assert.Equal(t, netretry.NotConnected, reason)
	reason, ok = c(&predicates.Attempt[int]{Err: io.EOF})
	assert.True(t, ok)
	assert.Equal(t, netretry.ConnectionLost, reason)
	assert.PanicsWithValue(t, "netretry: ClassifierOf: nil kind", func() { netretry.ClassifierOf[int](nil) })
}

// R3: a refused dial does not prove anything about the errors that are joined with it.
func TestJoinedErrors(t *testing.T) {
	refused := op("dial", syscallError("connect", syscall.ECONNREFUSED))
	unknown := errors.New("FATAL: terminating connection (SQLSTATE 57P01)")
	byName := predicates.NewReason(netretry.NotConnected.Name(), false, false)
	for name, tt := range map[string]struct {
		err      error
		reported predicates.Stage
		want     predicates.Reason
		stage    predicates.Stage
	}{
		"refused twice":   {errors.Join(refused, refused), predicates.Unreported, netretry.NotConnected, predicates.ClientDispatch},
		"and unknown":     {errors.Join(refused, unknown), predicates.Unreported, byName, predicates.NetworkTime},
		"unknown first":   {errors.Join(unknown, refused), predicates.Unreported, byName, predicates.NetworkTime},
		"with a sentinel": {fmt.Errorf("%w: %w", unknown, refused), predicates.Unreported, byName, predicates.NetworkTime},
		"and lost":        {errors.Join(refused, io.EOF), predicates.Unreported, netretry.ConnectionLost, predicates.NetworkTime},
		"and cancelled":   {errors.Join(refused, context.Canceled), predicates.Unreported, byName, predicates.NetworkTime},
		"both unsent":     {errors.Join(refused, unknown), predicates.ClientDispatch, netretry.NotConnected, predicates.ClientDispatch},
		"all in a dial": {
			op("dial", errors.Join(syscallError("connect", syscall.ECONNREFUSED), unknown)), predicates.Unreported,
			netretry.NotConnected, predicates.ClientDispatch,
		},
		"all in a client": {
			&url.Error{Op: "Post", URL: "http://x", Err: errors.Join(refused, refused)}, predicates.Unreported,
			netretry.HopNotConnected, predicates.Unreported,
		},
	} {
		reason, stage := classify(tt.err, tt.reported)
		assert.Equal(t, tt.want, reason, name)
		assert.Equal(t, tt.stage, stage, name)
	}
}
