package jobs

import (
	"cmp"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// DefaultMaxMerges is the default of [Spec].MaxMerges.
const DefaultMaxMerges = 5

// SendsBack reports whether a merge sends an entry back at the time now. If not, it
// counts in p why the entry stays. Every merge and [Forecast] use it. The first row that
// applies counts:
//
//	it is a pointer ([store.Message.PointsTo])            stays   Skipped
//	it was merged MaxMerges times                         stays   Looping
//	it is in doubt, and UnsafeToRepeat is not set         stays   Unsafe
//	it is to be looked at first, and LeaveLapsed is set   stays   Lapsed
//	otherwise                                             is sent back
//
// [store.Message.Repetition] returns whether an entry is in doubt, or to be looked at
// first. An entry that is counted in Unsafe is sent back if UnsafeToRepeat is set, and an
// entry in Lapsed if LeaveLapsed is not set.
func (s *Spec) SendsBack(e *store.Entry, now time.Time, p *Progress) bool {
	r := e.Repetition(now)
	switch {
	case e.PointsTo() != "":
		p.Skipped++
	case e.Meta.Merges >= cmp.Or(s.MaxMerges, DefaultMaxMerges):
		p.Looping++
	case r == store.RepeatInDoubt && !s.UnsafeToRepeat:
		p.Unsafe++
	case r == store.RepeatLookFirst && s.LeaveLapsed:
		p.Lapsed++
	default:
		return true
	}
	return false
}
