package sqliterecords

import (
	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/ext/sqlite"
)

const DueSQL = dueSQL

// Waiting returns how many calls of Run wait for a batch to end.
func (r *Records) Waiting() int { return r.group.Waiting() }

// NewBy is New with a clock for the times of answers.
func NewBy(db *sqlite.DB, c clock.Clock) *Records {
	r := New(db)
	r.clock = c
	return r
}
