package caller

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/message"
)

// clientOf derives the client of a message.
func clientOf(secret []byte, name, message string) (c exactlyonce.Client) {
	b := []byte("weir message 1")
	for _, s := range [...]string{name, message} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	h := sha256.New()
	if len(secret) > 0 {
		h = hmac.New(sha256.New, secret)
	}
	_, _ = h.Write(b) // never fails
	copy(c[:], h.Sum(nil))
	return c
}

func (e *element) resume(meta message.Meta) {
	// Earlier visits may have left no trace. From the second attempt on, the server looks
	// for records.
	made := int64(meta.Attempts) + 1
	var id exactlyonce.ID
	err := id.UnmarshalText([]byte(meta.Request))
	if err == nil && id.Client == clientOf(nil, e.tracker.config.Name, meta.ID) {
		e.client = id.Client // an earlier worker had no secret (law W4)
	}
	if err == nil && id.Client == e.client {
		e.number = id.Sequence // the number of the call in doubt, even after a merge
		made = max(made, int64(id.Attempt))
		e.sentAt(meta.FirstFailure)
		if meta.UnsafeToRepeat && !meta.Remembered.IsZero() && strings.HasSuffix(meta.Request, onlyRequest) {
			e.inDoubt, e.step = oneRequest, id.Step
		}
	}
	e.attempts.Store(made)
}

func (t *Tracker) hasCheckpoints() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.saved.used
}

// onlyRequest ends a carried id if its step is the only request of the message in doubt.
// Workers of earlier versions ignore it. Without it, several requests may be in doubt.
const onlyRequest = ";only=1"

// Carried implements [ctxkey.TrackedElement]. The message keeps the id in
// message.Meta.Request.
func (e *element) Carried() string {
	if e.client.IsZero() {
		return ""
	}
	e.tracker.mu.Lock()
	defer e.tracker.mu.Unlock()
	id := exactlyonce.ID{Client: e.client, Sequence: e.number, Attempt: int(min(e.attempts.Load(), oncewire.MaxAttempt))}
	if e.inDoubt != oneRequest {
		return id.String()
	}
	id.Step = e.step
	return id.String() + onlyRequest
}
