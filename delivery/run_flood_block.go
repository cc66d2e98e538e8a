package delivery

// block counts messages that were received one after the other, and their keys. A message
// without a key counts as a key of its own.
type block struct {
	share       float64
	size        int // messages of a full block
	endedFloods int // before the block began

	received int
	settled  int // of received; not counted for probes
	ended    int // of settled: messages with evidence
	failed   int // of ended: unanswered

	isNoted bool // its only key was noted as failing

	keys        map[string]*keyInBlock // nil without keys
	withoutKey  int                    // of received
	failingKeys int
}

type keyInBlock struct{ received, failed int }

// receive adds a message, and returns its key; nil without a key.
func (b *block) receive(key string) *keyInBlock {
	b.received++
	if key == "" {
		b.withoutKey++
		return nil
	}
	k := b.keys[key]
	if k == nil {
		k = &keyInBlock{}
		if b.keys == nil {
			b.keys = map[string]*keyInBlock{}
		}
		b.keys[key] = k
	}
	wasFailing := k.isFailing(b.share)
	k.received++
	b.countKey(wasFailing, k.isFailing(b.share))
	return k
}

// end counts the end of a message with evidence. k is its key, or nil.
func (b *block) end(k *keyInBlock, e evidence) {
	b.ended++
	if e != unanswered {
		return
	}
	b.failed++
	if k == nil {
		b.countKey(false, true)
		return
	}
	wasFailing := k.isFailing(b.share)
	k.failed++
	b.countKey(wasFailing, k.isFailing(b.share))
}

// countKey counts a key in failingKeys, or no longer, after a change.
func (b *block) countKey(wasFailing, isFailing bool) {
	switch {
	case isFailing && !wasFailing:
		b.failingKeys++
	case wasFailing && !isFailing:
		b.failingKeys--
	}
}

// isFailing reports whether most messages of the key have failed. Messages in flight
// count as successes.
func (k *keyInBlock) isFailing(share float64) bool {
	return float64(k.failed) > share*float64(k.received)
}

// isFlood reports whether most messages of the block have failed, and most of its keys,
// at least two (law D5). The messages that the block lacks yet count as successes, each
// with a key of its own.
func (b *block) isFlood() bool {
	keys := len(b.keys) + b.withoutKey + b.size - b.received
	return !b.isOneKey() && b.mostFailed() && float64(b.failingKeys) > b.share*float64(keys)
}

// mostFailed reports whether most messages of the block have failed. Messages that have
// not ended, or were not received yet, count as successes.
func (b *block) mostFailed() bool { return float64(b.failed) > b.share*float64(b.size) }

func (b *block) isOneKey() bool { return len(b.keys) == 1 && b.withoutKey == 0 }

func (b *block) anyKey() string {
	for key := range b.keys {
		return key
	}
	return ""
}
