package delivery

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// After a flood, the worker pauses, and then receives a probe: a few messages that show
// whether the service is up. If it is not, the next pause is twice as long, up to
// lastPause.
const (
	firstPause      = time.Second
	lastPause       = 5 * time.Second
	probesPerWindow = 10 // a probe is a tenth of a window
)

// evidence is a sign, at the end of a message, that the called service is up or down.
type evidence uint8

const (
	// noEvidence: the message was released or purged, its tenant is down, or it has failed
	// again after an earlier visit that failed.
	noEvidence evidence = iota
	answered            // done, or refused for good: the service is up
	unanswered          // failed: the service may be down
)

// evidenceOf returns the evidence of a settlement. hasFailedBefore reports that the
// message had failed in an earlier visit.
func evidenceOf(v message.Settlement, hasFailedBefore bool) evidence {
	switch {
	case v.Kind == message.Done, v.Kind == message.Rejected, v.Refused:
		return answered
	case hasFailedBefore, v.Kind == message.Released:
		return noEvidence
	case guard.Is(v.Err, gate.ErrTenantDown): // other tenants may be up
		return noEvidence
	}
	return unanswered
}

// flood finds out that most of the last new messages have failed (law D5). It counts the
// messages in blocks of window messages each, in the order of receipt: failing messages
// may end much sooner than others, so an order by their ends would show a flood too
// easily. Guarded by tally.mu.
type flood struct {
	share  float64
	window int
	last   *block // of the last received message; nil at the start and after a flood

	stopped     bool
	endedFloods int
	pause       time.Duration // the last pause; reset to 0 when all messages of a block are settled without a flood
	err         error         // of the last new message that failed

	// failedKey remembers a key whose messages fail. Messages of a key often arrive in
	// long runs, so a whole block may have one key: one key alone never stops the worker,
	// and a second one does (isSecondKey). failedKey is set when most messages of a
	// block, or of probes, with one key have failed. An answer to a message of another
	// key resets it to "".
	failedKey string

	probes    *block // probes without a decision yet, or nil
	lastProbe *block // the last probe; nil before its first end
}

// countedIn is the block in which a message is counted, or zero.
type countedIn struct {
	block *block
	key   *keyInBlock // nil without a key
	name  string      // of the key, or ""
}

func newFlood(share float64, window int) flood { return flood{share: share, window: window} }

// receive notes a message, and returns where it is counted. A message that has failed
// before is not counted. Neither is a probe: noteProbe counts it.
func (f *flood) receive(key string, hasFailedBefore bool) countedIn {
	if f.stopped || hasFailedBefore {
		return countedIn{}
	}
	if f.last == nil || f.last.received == f.window {
		f.last = &block{share: f.share, size: f.window, endedFloods: f.endedFloods}
	}
	return countedIn{f.last, f.last.receive(key), key}
}

// note notes the end of a message, and reports whether it stops the worker.
func (f *flood) note(c countedIn, e evidence, err error) bool {
	if e == unanswered && err != nil {
		f.err = err
	}
	b := c.block
	isCounted := b != nil && b.endedFloods >= f.endedFloods // received after the last flood
	if !isCounted || f.stopped {
		return false
	}
	b.settled++
	if e != noEvidence {
		f.noteEvidence(c, e)
	}
	if b.settled == f.window && !f.stopped {
		f.pause = 0
	}
	return f.stopped
}

// noteEvidence notes the evidence of a message in its block, and stops the worker at a
// flood.
func (f *flood) noteEvidence(c countedIn, e evidence) {
	b := c.block
	b.end(c.key, e)
	if e == answered && c.name != f.failedKey {
		f.failedKey = ""
	}
	isOneKey := b.received == b.size && b.isOneKey() && b.mostFailed()
	isSecondKey := isOneKey && f.failedKey != "" && f.failedKey != b.anyKey()
	if b.isFlood() || isSecondKey {
		f.stopped = true
		return
	}
	if isOneKey && !b.isNoted {
		// Only once for each block: before the rest of its messages have ended, an answer
		// of another key may reset failedKey.
		b.isNoted = true
		f.failedKey = b.anyKey()
	}
}

func (f *flood) lengthenPause() time.Duration {
	f.pause = min(max(firstPause, 2*f.pause), lastPause)
	return f.pause
}

func (f *flood) probeSize() int { return max(1, f.window/probesPerWindow) }

// noteProbe counts a message of a probe.
func (f *flood) noteProbe(key string, e evidence) {
	if e == noEvidence {
		return
	}
	if f.probes == nil {
		f.probes = &block{share: f.share}
	}
	if f.lastProbe == nil {
		f.lastProbe = &block{share: f.share}
	}
	for _, b := range []*block{f.probes, f.lastProbe} {
		b.size++
		b.end(b.receive(key), e)
	}
}

// judgeProbe decides what follows a probe. last is that probe. all are the probes since
// the worker stopped, or since judgeProbe forgot them. The first row that applies counts:
//
//	no message of last is evidence                         pause again
//	most of last were answered: the service is up          resume
//	most of all have failed, and they have one key:
//	  fewer than a window of them                          pause again
//	  otherwise, since other keys may be up                resume
//	all are a flood                                        forget them, and pause again
//	otherwise                                              resume
func (f *flood) judgeProbe() (resumes bool) {
	all, last := f.probes, f.lastProbe
	f.lastProbe = nil
	failedKey := ""
	switch {
	case last == nil:
		return false
	case !last.mostFailed():
	case all.isOneKey() && all.mostFailed():
		if all.ended < f.window {
			return false
		}
		// An earlier failedKey stays. If these probes have another key, that is then a
		// second key (isSecondKey), and a block of it stops the worker again.
		failedKey = cmp.Or(f.failedKey, all.anyKey())
	case all.isFlood():
		f.probes = nil
		return false
	}
	f.failedKey = failedKey
	f.resume()
	return true
}

func (f *flood) resume() {
	f.stopped = false
	f.last = nil
	f.probes = nil
	f.lastProbe = nil
	f.endedFloods++
}

func (t *tally) flooded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flood.stopped
}

// awaitProbe returns false if the run is to end.
func (w *worker[IN, OUT]) awaitProbe() bool {
	w.mu.Lock()
	pause, last := w.flood.lengthenPause(), w.flood.err
	w.mu.Unlock()
	w.logger.Warn("delivery: most of the last messages have failed: the worker pauses, and then tries some",
		slog.Int("last", w.floodWindow), slog.Any("error", last), slog.Duration("wait", pause), slog.Int("some", w.flood.probeSize()))
	return w.sleep(w.receiving, pause)
}

type probeEnd struct {
	key      string
	evidence evidence
}

// awaitProbeEnds waits for the n messages of a probe, and resumes if they allow it.
func (w *worker[IN, OUT]) awaitProbeEnds(ended <-chan probeEnd, n int) {
	for range n {
		select {
		case end := <-ended:
			w.mu.Lock()
			w.flood.noteProbe(end.key, end.evidence)
			w.mu.Unlock()
		case <-w.receiving.Done():
			return
		}
	}
	w.mu.Lock()
	probes, last := w.flood.probes, w.flood.lastProbe
	resumes := w.flood.judgeProbe()
	w.mu.Unlock()
	if !resumes {
		return
	}
	if last.mostFailed() && probes.isOneKey() {
		w.logger.Info("delivery: all messages of the probes have one key, which does not stop others: the worker resumes", slog.Int("failed", probes.failed))
		return
	}
	w.logger.Info("delivery: messages are answered again: the worker resumes",
		slog.Int("answered", probes.ended-probes.failed), slog.Int("failed", probes.failed))
}
