package sqliteretry

import (
	"cmp"
	"errors"
	"slices"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// retried are the codes of calls that were rolled back or not executed, and may succeed
// next time.
var retried = map[int]predicates.Reason{
	codes.SQLITE_BUSY:     predicates.NewReason("SQLITE_BUSY", true, false),
	codes.SQLITE_LOCKED:   predicates.NewReason("SQLITE_LOCKED", true, false),
	codes.SQLITE_FULL:     predicates.NewReason("SQLITE_FULL", true, false),
	codes.SQLITE_NOMEM:    predicates.NewReason("SQLITE_NOMEM", true, false),
	codes.SQLITE_CANTOPEN: predicates.NewReason("SQLITE_CANTOPEN", true, false),
	codes.SQLITE_PROTOCOL: predicates.NewReason("SQLITE_PROTOCOL", true, false),
	codes.SQLITE_SCHEMA:   predicates.NewReason("SQLITE_SCHEMA", true, false),
}

// unknown are the codes of calls that may have taken effect: a failing disk broke off the
// commit.
var unknown = map[int]predicates.Reason{
	codes.SQLITE_IOERR: predicates.NewReason("SQLITE_IOERR", false, false),
}

// refused are the codes of calls that would fail again.
var refused = map[int]string{
	codes.SQLITE_CONSTRAINT: "SQLITE_CONSTRAINT",
	codes.SQLITE_ERROR:      "SQLITE_ERROR",
	codes.SQLITE_TOOBIG:     "SQLITE_TOOBIG",
	codes.SQLITE_MISMATCH:   "SQLITE_MISMATCH",
	codes.SQLITE_READONLY:   "SQLITE_READONLY",
	codes.SQLITE_RANGE:      "SQLITE_RANGE",
	codes.SQLITE_AUTH:       "SQLITE_AUTH",
	codes.SQLITE_PERM:       "SQLITE_PERM",
	codes.SQLITE_CORRUPT:    "SQLITE_CORRUPT",
	codes.SQLITE_NOTADB:     "SQLITE_NOTADB",
	codes.SQLITE_MISUSE:     "SQLITE_MISUSE",
}

// names are the extended codes that programs look for.
var names = map[int]string{
	codes.SQLITE_CONSTRAINT_UNIQUE:     "SQLITE_CONSTRAINT_UNIQUE",
	codes.SQLITE_CONSTRAINT_PRIMARYKEY: "SQLITE_CONSTRAINT_PRIMARYKEY",
	codes.SQLITE_CONSTRAINT_FOREIGNKEY: "SQLITE_CONSTRAINT_FOREIGNKEY",
	codes.SQLITE_CONSTRAINT_NOTNULL:    "SQLITE_CONSTRAINT_NOTNULL",
	codes.SQLITE_CONSTRAINT_CHECK:      "SQLITE_CONSTRAINT_CHECK",
	codes.SQLITE_CONSTRAINT_TRIGGER:    "SQLITE_CONSTRAINT_TRIGGER",
	codes.SQLITE_CONSTRAINT_DATATYPE:   "SQLITE_CONSTRAINT_DATATYPE",
}

// Reasons returns the reasons of this package, for code that reads names. Rejections,
// named by their code, are not included.
func Reasons() []predicates.Reason {
	var all []predicates.Reason
	for _, r := range retried {
		all = append(all, r)
	}
	for _, r := range unknown {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b predicates.Reason) int { return cmp.Compare(a.Name(), b.Name()) })
	return all
}

// Classifier returns the classifier of calls to SQLite, with the table of the package
// documentation.
func Classifier[OUT any]() predicates.Classifier[OUT] {
	return decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		code, ok := codeOf(a.Err)
		if !ok {
			return predicates.Reason{}, false
		}
		if reason, ok := retried[code]; ok {
			return certain(a, reason), true
		}
		if reason, ok := unknown[code]; ok {
			return reason, true
		}
		if name, ok := refused[code]; ok {
			return certain(a, predicates.NewRejection(name)), true
		}
		return predicates.Reason{}, false
	})
}

// certain returns reason, which means that this transaction had no effect, or a weaker
// reason if another transaction of the call may have had one.
func certain[OUT any](a *predicates.Attempt[OUT], reason predicates.Reason) predicates.Reason {
	if a.InDoubt {
		return decision.WeakestOf(reason, predicates.Reason{})
	}
	return reason
}

// Code returns the extraction, for [predicates.ByCode], of the code of an error, such as
// SQLITE_BUSY or SQLITE_CONSTRAINT_UNIQUE.
func Code[OUT any]() func(a *predicates.Attempt[OUT]) (string, bool) {
	return func(a *predicates.Attempt[OUT]) (string, bool) {
		e, ok := errors.AsType[*driver.Error](a.Err)
		if !ok {
			return "", false
		}
		if name, ok := names[e.Code()]; ok {
			return name, true
		}
		code := e.Code() & 0xff
		if name, ok := refused[code]; ok {
			return name, true
		}
		if reason, ok := retried[code]; ok {
			return reason.Name(), true
		}
		if reason, ok := unknown[code]; ok {
			return reason.Name(), true
		}
		return "", false
	}
}

// codeOf returns an error's primary code, without the bits of an extended code.
func codeOf(err error) (code int, ok bool) {
	e, ok := errors.AsType[*driver.Error](err)
	if !ok {
		return 0, false
	}
	return e.Code() & 0xff, true
}
