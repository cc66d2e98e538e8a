package pgretry

import (
	"cmp"
	"errors"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// retried are the SQLSTATEs of statements that were rolled back or not executed, and may
// succeed next time.
var retried = reasonsOf(
	"0A000", "25006", "26000", "42P05", "40001", "40P01", "53000", "53100", "53200", "53300", "53400", "55P03", "57P03")

func reasonsOf(codes ...string) map[string]predicates.Reason {
	reasons := make(map[string]predicates.Reason, len(codes))
	for _, code := range codes {
		reasons[code] = predicates.NewReason("SQLSTATE_"+code, true, false)
	}
	return reasons
}

// refused are the SQLSTATE classes of statements that would fail again.
var refused = []string{"0A", "21", "22", "23", "28", "3D", "3F", "42", "44", "54", "P0"}

// lost are the SQLSTATEs with which a server ends a connection. The statement may have
// been executed.
var lost = []string{"57P01", "57P02", "57P04", "57P05", "25P03"}

// Reasons returns the reasons of this package, for code that reads names. Rejections,
// named SQLSTATE_ and the code, are not included.
func Reasons() []predicates.Reason {
	all := make([]predicates.Reason, 0, len(retried))
	for _, r := range retried {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b predicates.Reason) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// Classifier returns the classifier of calls to PostgreSQL, with the table of the package
// documentation. It sets the stage of the attempt where the error proves it.
func Classifier[OUT any]() predicates.Classifier[OUT] {
	connection := netretry.ClassifierOf[OUT](kindOf)
	return decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		code, answered := sqlState(a.Err)
		connecting := unsent(a.Err)
		switch {
		case connecting && a.Stage == predicates.Unreported:
			a.Stage = predicates.ClientDispatch
		case answered && !connecting && kindOf(a.Err) != netretry.Lost:
			a.Stage = predicates.ResponseReceived
		}
		if reason, ok := reasonOf(a.Err, code); ok && !connecting {
			return certain(a, reason), true
		}
		if answered && isRefused(code) {
			return certain(a, predicates.NewRejection("SQLSTATE_"+code)), true
		}
		return connection(a)
	})
}

// reasonOf returns the reason of an error whose statement may succeed next time. 0A000
// and 26000 are errors of a statement that was prepared before the schema or the
// connection changed, and 42P05 of a statement that another client of a pooler has
// prepared: pgx prepares them anew. An unsupported feature (0A000, too) has no reason.
func reasonOf(err error, code string) (reason predicates.Reason, ok bool) {
	if code == "0A000" {
		e, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || e.Routine != "RevalidateCachedQuery" {
			return predicates.Reason{}, false
		}
	}
	reason, ok = retried[code]
	return reason, ok
}

// certain returns reason, which means that this statement had no effect, or a weaker
// reason if another statement of the call may have had one.
func certain[OUT any](a *predicates.Attempt[OUT], reason predicates.Reason) predicates.Reason {
	if a.InDoubt {
		return decision.WeakestOf(reason, predicates.Reason{})
	}
	return reason
}

// SQLState returns the extraction, for [predicates.ByCode], of the SQLSTATE of an error.
func SQLState[OUT any]() func(a *predicates.Attempt[OUT]) (string, bool) {
	return func(a *predicates.Attempt[OUT]) (string, bool) { return sqlState(a.Err) }
}

// stateError is an answer of the server, from pgx or another driver.
type stateError interface {
	error
	SQLState() string
}

var _ stateError = (*pgconn.PgError)(nil)

func sqlState(err error) (code string, ok bool) {
	e, ok := errors.AsType[stateError](err)
	if !ok {
		return "", false
	}
	return e.SQLState(), true
}

// unsent reports whether err certainly occurred before any part of the statement was
// sent.
func unsent(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return connecting || pgconn.SafeToRetry(err)
}

// kindOf is netretry.KindOf with the errors of PostgreSQL.
func kindOf(err error) netretry.Kind {
	if unsent(err) {
		// A failed dial, whatever its cause, unless that is permanent.
		return netretry.KindOf(&net.OpError{Op: "dial", Err: err})
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.SeverityUnlocalized == "FATAL" || e.SeverityUnlocalized == "PANIC") {
		return netretry.Lost
	}
	if code, ok := sqlState(err); ok {
		if slices.Contains(lost, code) {
			return netretry.Lost
		}
		return netretry.Other // the server's answer, however wrapped
	}
	return netretry.KindOf(err)
}

func isRefused(code string) bool {
	return code == "57014" || len(code) == 5 && slices.Contains(refused, code[:2])
}
