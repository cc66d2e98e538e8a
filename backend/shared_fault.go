package backend

import (
	"errors"
	"fmt"
	"log/slog"
)

// fault is why a step has not renewed the share.
type fault int

const (
	noFault    fault = iota
	noEngine         // the engine does not answer
	unreadable       // the engine answers, but this version cannot read the table
)

var (
	errNoShare    = errors.New("this process has no share of the fleet's limit at present")
	errUnreadable = errors.New("unknown format of the record with the shares: update weir if a later version has written it")
)

// faultOf returns the fault of a step that has failed with an error.
func faultOf(err error) fault {
	switch {
	case err == nil:
		return noFault
	case errors.Is(err, errUnreadable):
		return unreadable
	}
	return noEngine
}

// note notes the error of a step, or nil, and logs a change of the fault.
func (f *fleetShare) note(err error) {
	before := f.fault
	f.fault, f.why = faultOf(err), err
	b := f.backend
	switch {
	case f.fault == before:
	case f.fault == noEngine:
		b.logBecause(err.Error(), slog.LevelWarn, "backend: the engine of the shared limit does not answer")
	case f.fault == unreadable:
		b.logBecause(err.Error(), slog.LevelWarn, "backend: the record of the shared limit cannot be read")
	case before == noEngine:
		b.logBecause("", slog.LevelInfo, "backend: the engine of the shared limit answers again")
	default:
		b.logBecause("", slog.LevelInfo, "backend: the share of the limit is renewed again")
	}
}

// whyNoShare returns the reason for which calls wait for a share.
func (f *fleetShare) whyNoShare() error {
	name := f.backend.name
	switch f.fault {
	case noEngine:
		return fmt.Errorf("backend %s: %w: its engine does not answer: %w", name, errNoShare, f.why)
	case unreadable:
		return fmt.Errorf("backend %s: %w: %w", name, errNoShare, f.why)
	}
	return fmt.Errorf("backend %s: %w", name, errNoShare)
}
