package jobs

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
)

// jobRecords are jobs' records, to compare with the log. Not safe for concurrent use.
type jobRecords struct {
	latest int            // the highest id
	ended  map[int]string // texts of ended jobs (textOf) by id; a matching line removes the job
}

func (j *Jobs) readJobRecords(ctx context.Context) (*jobRecords, error) {
	open, err := all(ctx, j.engine, kindJob)
	if err != nil {
		return nil, err
	}
	ended, err := all(ctx, j.engine, kindEnded)
	if err != nil {
		return nil, err
	}
	r := &jobRecords{ended: map[int]string{}}
	for _, job := range open {
		r.latest = max(r.latest, job.ID)
	}
	for _, job := range ended {
		r.latest = max(r.latest, job.ID)
		r.ended[job.ID] = textOf(job)
	}
	return r, nil
}

// textOf returns a job as a line of the log has it.
func textOf(job Job) string {
	job.Bounds = nil
	text, err := json.Marshal(job)
	if err != nil {
		return err.Error() // a Rate that JSON does not have
	}
	return string(text)
}

func (r *jobRecords) match(job Job) {
	text, ok := r.ended[job.ID]
	if ok && !job.Ended.IsZero() && text == textOf(job) {
		delete(r.ended, job.ID)
	}
}

// check returns an error if a record does not match the log, whose last line has the
// number last.
func (r *jobRecords) check(last int) error {
	if r.latest > last {
		return cutError{last, r.latest}
	}
	if len(r.ended) == 0 {
		return nil
	}
	return changed("jobs: the record of job %d was changed: it differs from the line of the log about the end of the job", slices.Min(slices.Collect(maps.Keys(r.ended))))
}
