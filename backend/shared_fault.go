package backend

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/weirflow/weir/delivery/store"
)

// fault is why a step has not renewed the share.
type fault int

const (
	noFault    fault = iota
	noEngine         // the engine does not answer
	unreadable       // this version cannot read the table
	outpaced         // other processes were faster in all tries
)

var (
	errNoShare    = errors.New("at present this process does not have a share of the fleet's limit")
	errUnreadable = errors.New("unknown format of the record with the shares: update weir if a later version has written it")
)

func faultOf(err error) fault {
	switch {
	case err == nil:
		return noFault
	case errors.Is(err, errUnreadable):
		return unreadable
	case errors.Is(err, store.ErrChanged):
		return outpaced
	}
	return noEngine
}

// note notes a step's error, or nil, and logs a change of the fault. After an outage of
// the engine, an outpaced step does not end the fault.
func (f *fleetShare) note(err error) {
	before, now := f.fault, faultOf(err)
	if before == noEngine && now == outpaced {
		return
	}
	f.fault, f.why = now, err
	b := f.backend
	switch {
	case now == before:
	case now == noEngine:
		b.logBecause(nil, err.Error(), slog.LevelWarn, "backend: the engine of the shared limit does not answer")
	case now == unreadable:
		b.logBecause(nil, err.Error(), slog.LevelWarn, "backend: the record of the shared limit cannot be read")
	case now == outpaced:
		b.logBecause(nil, err.Error(), slog.LevelWarn, "backend: other processes renew their shares of the limit faster")
	case before == noEngine:
		b.logBecause(nil, "", slog.LevelInfo, "backend: the engine of the shared limit answers again")
	default:
		b.logBecause(nil, "", slog.LevelInfo, "backend: the share of the limit is renewed again")
	}
}

func (f *fleetShare) whyNoShare() error {
	name := f.backend.name
	isLeased := f.machine.IsLeased(f.instant())
	switch {
	case f.fault == noEngine:
		return fmt.Errorf("backend %s: %w: its engine does not answer: %w", name, errNoShare, f.why)
	case f.fault == unreadable:
		return fmt.Errorf("backend %s: %w: %w", name, errNoShare, f.why)
	case f.fault == outpaced && !isLeased:
		return fmt.Errorf("backend %s: %w: in %d tries to renew it, other processes were faster", name, errNoShare, stepTries)
	}
	return fmt.Errorf("backend %s: %w", name, errNoShare)
}
