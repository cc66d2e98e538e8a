package storearg

import (
	"cmp"
	"strconv"
	"strings"
)

// Role is the role of a queue of the engine in the family of a program's queue: the
// queues that belong to it (law W1). The roles are in the order in which messages move.
type Role uint8

// The roles of queues.
const (
	RoleMain    Role = iota // the program's queue itself
	RoleBlocked             // "<queue>-blocked" of an earlier version: messages that wait behind others of their key
	RoleLayer               // failed messages that wait for their next visit
	RoleDead                // dead letters
)

// Names of the queues of a family, after the name of the program's queue.
const (
	blockedSuffix = "-blocked"
	layerInfix    = "-retry-" // before the number of the layer
	deadSuffix    = "-dead"
)

// outboxDeadSuffix ends the name of an outbox's dead letters.
const outboxDeadSuffix = " dead"

// Part is a queue of the engine as a part of a family.
type Part struct {
	Queue string // the program's queue, such as "orders"
	Role  Role
	Layer int // the number of the layer, from 1; 0 if Role is not RoleLayer
}

// PartOf parses the name of a queue of the engine. Only storesql.SharesLimit parses these
// names as well, in SQL.
func PartOf(name string) Part {
	i := strings.LastIndex(name, layerInfix)
	if i > 0 {
		n, err := strconv.Atoi(name[i+len(layerInfix):])
		if err == nil && n > 0 {
			return Part{Queue: name[:i], Role: RoleLayer, Layer: n}
		}
	}
	queue, isDead := strings.CutSuffix(name, deadSuffix)
	if isDead && queue != "" {
		return Part{Queue: queue, Role: RoleDead}
	}
	queue, isBlocked := strings.CutSuffix(name, blockedSuffix)
	if isBlocked && queue != "" {
		return Part{Queue: queue, Role: RoleBlocked}
	}
	return Part{Queue: name}
}

// Compare orders the parts of a family in the order in which messages move.
func (p Part) Compare(other Part) int {
	return cmp.Or(cmp.Compare(p.Role, other.Role), cmp.Compare(p.Layer, other.Layer))
}

// SharesLimit reports whether the messages of the queue wait for a visit: all such queues
// of a family share the limit of a key ([store.KeyRound]).
func (p Part) SharesLimit() bool { return p.Role != RoleDead }

// LayersOf returns the beginning of the names of a queue's layers, before their numbers.
func LayersOf(queue string) string { return queue + layerInfix }

// LayerOf returns the name of the n-th layer of a queue.
func LayerOf(queue string, n int) string { return LayersOf(queue) + strconv.Itoa(n) }

// BlockedOf returns the name of the queue of an earlier version of weir in which messages
// wait behind others of their key.
func BlockedOf(queue string) string { return queue + blockedSuffix }

// DeadOf returns the name of the queue of a queue's dead letters.
func DeadOf(queue string) string { return queue + deadSuffix }

// OutboxDeadOf returns the name of the queue of an outbox's dead letters.
func OutboxDeadOf(outbox string) string { return outbox + outboxDeadSuffix }

// OutboxOfDead returns the outbox whose dead letters a queue holds.
func OutboxOfDead(name string) (outbox string, ok bool) {
	outbox, ok = strings.CutSuffix(name, outboxDeadSuffix)
	return outbox, ok && outbox != ""
}
