package netretry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Kind is the kind of a connection's failure, independent of the stage.
type Kind uint8

const (
	// Other means another failure, or a permanent failure of a connection.
	Other Kind = iota
	// Dial means that no connection could be made, or no usable one was left
	// (driver.ErrBadConn of database/sql).
	Dial
	// Lost means that an established connection ended.
	Lost
	// Timeout means that time ran out.
	Timeout
)

// String returns the kind in words.
func (k Kind) String() string {
	switch k {
	case Other:
		return "other"
	case Dial:
		return "not connected"
	case Lost:
		return "lost"
	case Timeout:
		return "timed out"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// KindOf returns the kind of err, even if it is wrapped. The outermost *[net.OpError]
// determines the operation.
func KindOf(err error) Kind {
	if err == nil || errors.Is(err, context.Canceled) || permanent(err) {
		return Other
	}
	if dialing(err) {
		return Dial
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Timeout
	}
	if t, ok := asTimeout(err); ok && t.Timeout() {
		return Timeout
	}
	for _, target := range lost {
		if errors.Is(err, target) {
			return Lost
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "read" || op.Op == "write") {
		return Lost // for systems with other error numbers
	}
	return Other
}

var lost = []error{
	io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
	syscall.ECONNRESET, syscall.ECONNABORTED, syscall.ECONNREFUSED, syscall.EPIPE, syscall.ENETRESET,
}

// dialing reports whether making a connection failed, or the operation was not performed.
// Only these errors prove that the request was not sent: see the package documentation
// for ECONNREFUSED.
func dialing(err error) bool {
	if errors.Is(err, driver.ErrBadConn) {
		return true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		switch op.Op {
		case "dial", "proxyconnect", "socks connect":
			return true
		}
		return false
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	call, ok := errors.AsType[*os.SyscallError](err)
	return ok && (call.Syscall == "connect" || call.Syscall == "connectex")
}

func permanent(err error) bool {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.IsNotFound
	}
	return is[*net.AddrError](err) || is[net.InvalidAddrError](err) || is[net.UnknownNetworkError](err) ||
		is[*net.ParseError](err) || certificate(err)
}

// certificate reports whether a certificate was refused, or the peer does not speak TLS.
// Such an error is permanent and precedes the request.
func certificate(err error) bool {
	return is[*tls.CertificateVerificationError](err) || is[tls.RecordHeaderError](err) ||
		is[x509.UnknownAuthorityError](err) || is[x509.HostnameError](err) || is[x509.CertificateInvalidError](err)
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// timeout need not be a net.Error.
type timeout interface{ Timeout() bool }

func asTimeout(err error) (t timeout, ok bool) {
	return t, errors.As(err, &t)
}
