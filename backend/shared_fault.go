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

// faultLines are the log lines at the beginning of a fault.
var faultLines = map[fault]string{
	noEngine:   "backend: the engine of the shared limit does not answer",
	unreadable: "backend: the record of the shared limit cannot be read",
	outpaced:   "backend: other processes renew their shares of the limit faster",
}

// note notes a step's error, or nil, and logs a change of the fault. After an outage of
// the engine, an outpaced step does not end the fault.
func (f *fleetShare) note(err error) {
	before, now := faultOf(f.why), faultOf(err)
	if before == noEngine && now == outpaced {
		return
	}
	f.why = err
	b := f.backend
	switch {
	case now == before:
	case err != nil:
		b.logBecause(nil, err.Error(), slog.LevelWarn, faultLines[now])
	case before == noEngine:
		b.logBecause(nil, "", slog.LevelInfo, "backend: the engine of the shared limit answers again")
	default:
		b.logBecause(nil, "", slog.LevelInfo, "backend: the share of the limit is renewed again")
	}
}

func (f *fleetShare) whyNoShare() error {
	name := f.backend.name
	why := faultOf(f.why)
	isLeased := f.machine.IsLeased(f.instant()) // the share is 0
	switch {
	case why == noEngine:
		return fmt.Errorf("backend %s: %w: its engine does not answer: %w", name, errNoShare, f.why)
	case why == unreadable:
		return fmt.Errorf("backend %s: %w: %w", name, errNoShare, f.why)
	case why == outpaced && !isLeased:
		return fmt.Errorf("backend %s: %w: in %d tries to renew it, other processes were faster", name, errNoShare, stepTries)
	}
	return fmt.Errorf("backend %s: %w", name, errNoShare)
}
