package delivery

// block counts messages received one after the other, and their keys. A message without a
// key counts as a key of its own.
type block struct {
	share       float64
	size        int // messages of a full block
	endedFloods int // before the block began

	received      int
	settled       int // of received, with or without evidence; not counted for probes
	ended, failed int // of settled, with evidence

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

func (b *block) countKey(was, is bool) {
	switch {
	case is && !was:
		b.failingKeys++
	case was && !is:
		b.failingKeys--
	}
}

// isFailing reports whether most messages of the key have failed, even if the messages in
// flight all succeed.
func (k *keyInBlock) isFailing(share float64) bool {
	return float64(k.failed) > share*float64(k.received)
}

// isFlood reports whether most messages of the block, and most of its keys, two at least,
// have failed (law D5), even if the block's missing messages all succeed, each with its
// own key.
func (b *block) isFlood() bool {
	keys := len(b.keys) + b.withoutKey + b.size - b.received
	return !b.isOneKey() && b.mostFailed() && float64(b.failingKeys) > b.share*float64(keys)
}

// mostFailed reports whether most messages of the block have failed, even if the others
// succeed.
func (b *block) mostFailed() bool { return float64(b.failed) > b.share*float64(b.size) }

func (b *block) isOneKey() bool { return len(b.keys) == 1 && b.withoutKey == 0 }

func (b *block) anyKey() string {
	for key := range b.keys {
		return key
	}
	return ""
}
