package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

const imported = "import"

const recordTimeout = 10 * time.Second

// Import runs put, which puts messages from outside into a queue, and records it in the
// log: one line before put, and one with its counts after it. put returns how many
// messages it has stored and how many it has left out. If the process is killed during
// put, only the first line is there.
//
// It returns the import as a completed job. If put fails, the job has its error, and
// Import returns that error too.
func (j *Jobs) Import(ctx context.Context, queue, by, why string, put func(ctx context.Context) (done, skipped int, err error)) (Job, error) {
	spec := Spec{Do: imported, Queue: queue, By: by, Why: why}
	if by == "" || why == "" {
		return Job{}, errors.New("jobs: an import needs a By and a Why")
	}
	if err := storearg.Queue(queue); err != nil {
		return Job{}, err
	}
	var job Job
	err := j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		id, err := nextID(ctx, tx)
		if err != nil {
			return err
		}
		job = Job{ID: id, Spec: spec, Begun: tx.Now().UTC(), Format: spec.format()}
		return appendLine(ctx, tx, Line{At: job.Begun, Event: imported, By: by, Why: why, Job: job})
	})
	if err != nil {
		return Job{}, err
	}
	done, skipped, failure := put(ctx)
	job.Done = done
	job.Skipped = skipped
	job.Total = done + skipped
	if failure != nil {
		job.Error = guard.Text(failure)
	}
	// The messages are stored, so an interrupted import is recorded as well.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	err = j.update(ending, func(ctx context.Context, tx store.Tx) error {
		job.Ended = tx.Now().UTC()
		return writeEnded(ctx, tx, Line{At: job.Ended, Event: "end", By: by, Why: why, Job: job})
	})
	return job, errors.Join(failure, err)
}
