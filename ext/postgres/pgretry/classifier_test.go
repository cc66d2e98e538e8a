package pgretry_test

import (
	"context"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres/pgretry"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

var none predicates.Reason

func sqlstate(code string) error {
	return fmt.Errorf("insert: %w", &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code})
}

func fatal(code string) error {
	return &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code}
}

// sendError is shaped like the errors of pgconn.
type sendError struct {
	safe bool
	err  error
}

func (e *sendError) Error() string     { return "write failed: " + e.err.Error() }
func (e *sendError) Unwrap() error     { return e.err }
func (e *sendError) SafeToRetry() bool { return e.safe }

// connectError returns the error of pgx after a dial that ends with err.
func connectError(t *testing.T, err error) error {
	t.Helper()
	config, parseErr := pgconn.ParseConfig("postgres://u@127.0.0.1:1/d?sslmode=disable")
	require.NoError(t, parseErr)
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, err }
	_, err = pgconn.ConnectConfig(t.Context(), config)
	require.ErrorContains(t, err, "failed to connect")
	return err
}

func strong(code string) predicates.Reason {
	return predicates.NewReason("SQLSTATE_"+code, true, false)
}
func rejection(code string) predicates.Reason { return predicates.NewRejection("SQLSTATE_" + code) }
func weak(r predicates.Reason) predicates.Reason {
	return predicates.NewReason(r.Name(), false, false)
}

func classify(a *predicates.Attempt[int]) predicates.Reason {
	reason, ok := pgretry.Classifier[int]()(a)
	if !ok {
		return none
	}
	return reason
}

// The table of the package documentation.
func TestReasons(t *testing.T) {
	const (
		unreported = predicates.Unreported
		dispatch   = predicates.ClientDispatch
		response   = predicates.ResponseReceived
	)
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, tt := range map[string]struct {
		err   error
		want  predicates.Reason
		stage predicates.Stage
	}{
		"serialization":       {sqlstate("40001"), strong("40001"), response},
		"deadlock":            {sqlstate("40P01"), strong("40P01"), response},
		"lock":                {sqlstate("55P03"), strong("55P03"), response},
		"resources":           {sqlstate("53000"), strong("53000"), response},
		"disk full":           {sqlstate("53100"), strong("53100"), response},
		"memory":              {sqlstate("53200"), strong("53200"), response},
		"connections":         {sqlstate("53300"), strong("53300"), response},
		"limit":               {sqlstate("53400"), strong("53400"), response},
		"starting":            {sqlstate("57P03"), strong("57P03"), response},
		"read only":           {sqlstate("25006"), strong("25006"), response},
		"gone statement":      {sqlstate("26000"), strong("26000"), response},
		"cached plan":         {&pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery"}, strong("0A000"), response},
		"not supported":       {sqlstate("0A000"), rejection("0A000"), response},
		"unique":              {sqlstate("23505"), rejection("23505"), response},
		"foreign key":         {sqlstate("23503"), rejection("23503"), response},
		"text":                {sqlstate("22P02"), rejection("22P02"), response},
		"cancelled":           {sqlstate("57014"), rejection("57014"), response},
		"no such table":       {sqlstate("42P01"), rejection("42P01"), response},
		"raised":              {sqlstate("P0001"), rejection("P0001"), response},
		"internal":            {sqlstate("XX000"), none, response},
		"completion unknown":  {sqlstate("40003"), none, response},
		"shut down in flight": {fatal("57P01"), netretry.ConnectionLost, unreported},
		"57P01, as an error":  {sqlstate("57P01"), netretry.ConnectionLost, unreported},
		"crashed":             {fatal("57P02"), netretry.ConnectionLost, unreported},
		"other fatal":         {fatal("XX000"), netretry.ConnectionLost, unreported},

		"refused":               {connectError(t, refused), netretry.NotConnected, dispatch},
		"dial timed out":        {connectError(t, context.DeadlineExceeded), netretry.NotConnected, dispatch},
		"lost while connecting": {connectError(t, io.EOF), netretry.NotConnected, dispatch},
		"two hosts":             {connectError(t, errors.Join(refused, io.EOF)), netretry.NotConnected, dispatch},
		"something else":        {connectError(t, errors.New("no primary")), netretry.NotConnected, dispatch},
		"starting up":           {connectError(t, fatal("57P03")), netretry.NotConnected, dispatch},
		"shutting down":         {connectError(t, fatal("57P01")), netretry.NotConnected, dispatch},
		"too many":              {connectError(t, fatal("53300")), netretry.NotConnected, dispatch},
		"password":              {connectError(t, fatal("28P01")), rejection("28P01"), dispatch},
		"no such database":      {connectError(t, fatal("3D000")), rejection("3D000"), dispatch},
		"one of two hosts":      {connectError(t, errors.Join(fatal("28P01"), refused)), netretry.NotConnected, dispatch},
		"certificate":           {connectError(t, x509.UnknownAuthorityError{}), none, dispatch},
		"cancelled dial":        {connectError(t, context.Canceled), none, dispatch},

		"safe to retry":     {&sendError{true, syscall.EPIPE}, netretry.NotConnected, dispatch},
		"safe, timed out":   {&sendError{true, context.DeadlineExceeded}, netretry.NotConnected, dispatch},
		"safe, cancelled":   {&sendError{true, context.Canceled}, none, dispatch},
		"safe, unknown":     {&sendError{true, errors.New("conn closed")}, netretry.NotConnected, dispatch},
		"not safe":          {&sendError{false, syscall.EPIPE}, netretry.ConnectionLost, unreported},
		"bad connection":    {driver.ErrBadConn, netretry.NotConnected, dispatch},
		"lost":              {io.ErrUnexpectedEOF, netretry.ConnectionLost, unreported},
		"timed out":         {context.DeadlineExceeded, netretry.TimedOut, unreported},
		"no rows":           {sql.ErrNoRows, none, unreported},
		"whatever":          {errors.New("whatever"), none, unreported},
		"cancelled by user": {context.Canceled, none, unreported},
	} {
		a := &predicates.Attempt[int]{Err: tt.err}
		assert.Equal(t, tt.want, classify(a), "%s: %v", name, tt.err)
		assert.Equal(t, tt.stage, a.Stage, "%s: %v", name, tt.err)
	}
	assert.Equal(t, none, classify(&predicates.Attempt[int]{Results: []int{1}}))
}

// The shape of lib/pq's errors.
type pqError struct{ code string }

func (e *pqError) Error() string    { return "pq: " + e.code }
func (e *pqError) SQLState() string { return e.code }

func TestErrorsOfOtherDrivers(t *testing.T) {
	for code, want := range map[string]predicates.Reason{
		"40001": strong("40001"), "23505": rejection("23505"), "57P01": netretry.ConnectionLost, "": none, "23": none,
	} {
		assert.Equal(t, want, classify(&predicates.Attempt[int]{Err: &pqError{code}}), code)
	}
}

// R3
func TestJoinedErrors(t *testing.T) {
	refused := connectError(t, syscall.ECONNREFUSED)
	for name, tt := range map[string]struct {
		a, b error
		want predicates.Reason
	}{
		"refused, shut down":  {refused, fatal("57P01"), netretry.ConnectionLost},
		"refused, lost":       {refused, io.EOF, netretry.ConnectionLost},
		"refused, unknown":    {refused, errors.New("whatever"), weak(netretry.NotConnected)},
		"refused, no rows":    {refused, sql.ErrNoRows, weak(netretry.NotConnected)},
		"refused, duplicate":  {refused, sqlstate("23505"), netretry.NotConnected},
		"deadlock, shut down": {sqlstate("40P01"), fatal("57P01"), netretry.ConnectionLost},
		"deadlock, internal":  {sqlstate("40P01"), sqlstate("XX000"), weak(strong("40P01"))},
		"deadlock twice":      {sqlstate("40P01"), sqlstate("40P01"), strong("40P01")},
		"two refusals":        {sqlstate("23505"), sqlstate("23505"), rejection("23505")},
		"duplicate, unknown":  {sqlstate("23505"), errors.New("whatever"), none},
	} {
		for _, err := range []error{errors.Join(tt.a, tt.b), errors.Join(tt.b, tt.a), fmt.Errorf("%w: %w", tt.a, tt.b)} {
			assert.Equal(t, tt.want, classify(&predicates.Attempt[int]{Err: err}), "%s: %v", name, err)
		}
	}
}

// Errors after another request of the call was sent.
func TestClassifier_AfterAnotherRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want predicates.Reason
	}{
		"refused":   {connectError(t, syscall.ECONNREFUSED), netretry.HopNotConnected},
		"not sent":  {&sendError{true, io.EOF}, netretry.HopNotConnected},
		"deadlock":  {sqlstate("40P01"), weak(strong("40P01"))},
		"duplicate": {sqlstate("23505"), none},
	} {
		a := &predicates.Attempt[int]{Err: tt.err, Stage: predicates.NetworkTime, InDoubt: true}
		assert.Equal(t, tt.want, classify(a), name)
		assert.NotEqual(t, predicates.ClientDispatch, a.Stage, name)
	}
}

func TestTableOfOnesOwn(t *testing.T) {
	slow := predicates.NewReason("SLOW", true, false)
	c := predicates.Classifiers(
		predicates.ByCode(pgretry.SQLState[int](), map[string]predicates.Reason{"57014": slow}), pgretry.Classifier[int]())
	for code, want := range map[string]predicates.Reason{"57014": slow, "40001": strong("40001")} {
		reason, ok := c(&predicates.Attempt[int]{Err: sqlstate(code)})
		assert.True(t, ok)
		assert.Equal(t, want, reason)
	}
	_, ok := pgretry.SQLState[int]()(&predicates.Attempt[int]{})
	assert.False(t, ok)
}

func TestReasonsByName(t *testing.T) {
	for _, r := range pgretry.Reasons() {
		assert.True(t, r.AllowsNonIdempotentRetry(), "%v", r)
		assert.False(t, r.AlwaysRetry() || r.IsRejection(), "%v", r)
	}
	assert.Contains(t, pgretry.Reasons(), strong("40P01"))
}
