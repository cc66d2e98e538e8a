package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/settle"
)

// editedFrom is a header of messages that [Jobs.Edit] has made: the id of the replaced
// message.
const editedFrom = "Edited-From"

// edited is the Spec.Do of jobs that record a call of [Jobs.Edit].
const edited = "edit"

// errNotFree ends a transaction without a change. update would repeat a transaction that
// returns ErrChanged.
var errNotFree = errors.New("the message is gone, or a worker has it")

const maxIDPrefix = 900 // of an edited message; an id has 1,024 bytes at most

// Edit puts a message with another payload into the queue to, and removes the message
// that was listed as e from queue, in a transaction with a line of the log. It returns
// the edit, recorded as a job that has ended. The new message has a new id and the old id
// in its header Edited-From. It starts as for a first visit, without the request id, so
// its calls are new requests. The error matches [store.ErrChanged] if e is gone, is
// leased, or was taken since; then the queues stay as they are.
func (j *Jobs) Edit(ctx context.Context, queue string, e store.Entry, to string, payload []byte, by, why string) (Job, error) {
	spec := Spec{Do: store.Merge, Queue: queue, To: to, Filter: store.Filter{IDs: []string{e.Meta.ID}}, By: by, Why: why}
	if err := spec.check(); err != nil {
		return Job{}, err
	}
	if _, ok := j.engine.(*local); ok {
		return Job{}, errors.New("jobs: this engine does not edit messages: it is not a store.Keeper")
	}
	spec.Do = edited
	var job Job
	err := j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		now := tx.Now().UTC()
		id, err := nextID(ctx, tx)
		if err != nil {
			return err
		}
		entry := e
		entry.Message = editedMessage(&e, payload, now)
		entry.Meta.MergeJob = id
		done, err := tx.Edit(ctx, store.Edit{Do: store.Merge, Queue: queue, Entry: entry, To: to})
		if err != nil {
			return err
		}
		if !done[0] {
			return errNotFree
		}
		job = Job{ID: id, Spec: spec, Progress: Progress{Done: 1}, Total: 1, Begun: now, Ended: now, Format: spec.format()}
		return writeEnded(ctx, tx, Line{At: now, Event: edited, By: by, Why: why, Job: job})
	})
	if errors.Is(err, errNotFree) {
		return Job{}, fmt.Errorf("jobs: %w: %w", err, store.ErrChanged)
	}
	return job, err
}

func editedMessage(e *store.Entry, payload []byte, now time.Time) store.Message {
	m := e.Clone()
	failed.ResetForMerge(&m.Meta, now)
	failed.EndDoubt(&m.Meta)     // its calls have another id, so they are new requests
	settle.DropPointsTo(&m.Meta) // it has bytes now
	if m.Meta.Headers == nil {
		m.Meta.Headers = map[string]string{}
	}
	m.Meta.Headers[editedFrom] = e.Meta.ID
	m.Meta.ID = editedID(e.Meta.ID, payload)
	m.Payload = payload
	m.Cause = ""
	m.Delay = 0
	return m
}

// editedID returns the id of an edited message: the same for the same payload.
func editedID(old string, payload []byte) string {
	sum := sha256.Sum256(append([]byte(old+"\x00"), payload...))
	return old[:min(len(old), maxIDPrefix)] + "~" + hex.EncodeToString(sum[:6])
}
