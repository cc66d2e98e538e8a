package sqlite

import (
	"context"
	"maps"
	"slices"

	"github.com/weirflow/weir/delivery/store"
)

// Children are the processes that tests of package sqlite_test start.
var Children []func()

// SetStep sets what is called between statements.
func SetStep(s *Engine, step func()) { s.step = step }

// Page is the condition of List and Claim.
var Page = page

// Statements that choose keys, and messages to lease.
var (
	SelectDueKeys   = selectDueKeys
	SelectKeysBelow = selectKeysBelow
	SelectInFlight  = selectInFlight
	PositionsOfKeys = positionsOfKeys
	PositionsDue    = positionsDue
	PositionsFree   = positionsFree
)

// Statements that choose the heads of keys.
var (
	CandidatesDue    = candidatesDue
	CandidatesOfKeys = candidatesOfKeys
	SelectAhead      = selectAhead
	SelectKeyState   = selectKeyState
	AppointNext      = appointNext
	SelectKeysSwept  = selectKeysSwept
)

// SelectKeyCounts is the statement of CountKeys.
var SelectKeyCounts = selectKeyCounts

// Stage puts messages in a transaction, as PutTx does.
func Stage(ctx context.Context, s *Engine, tx execer, queue string, ms ...store.Message) error {
	return s.stage(ctx, tx, queue, ms...)
}

// QueuesToLookAt returns the queues at which the watcher of a database will look at a
// certain time.
func QueuesToLookAt(db *DB) []string {
	db.watcher.mu.Lock()
	defer db.watcher.mu.Unlock()
	return slices.Sorted(maps.Keys(db.watcher.next))
}
