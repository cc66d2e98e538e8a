package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// Line is a line of the log.
type Line struct {
	N     int       `json:"n"` // from 1
	At    time.Time `json:"at"`
	Event string    `json:"event"` // start, pause, resume, rate, cancel, end, import, edit; of a backend: hold, resume, limit; of a queue: pause, resume; of a key: hold, resume
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Job   Job       `json:"job,omitzero"` // as it was then; zero if Backend, Queue or Key is set
	// Backend is the order to a backend, or nil.
	Backend *BackendOrder `json:"backend,omitempty"`
	// Queue is the order to the workers of a queue, or nil.
	Queue *QueueOrder `json:"queue,omitempty"`
	// Key is the order to the workers of a queue about a key, or nil.
	Key *KeyOrder `json:"key,omitempty"`
	// Hash is the SHA-256 of the line and of the previous line's hash, in hexadecimal.
	Hash string `json:"-"`
}

// headName is the name of the record of the end of the log.
const headName = "log"

func hashOf(before, text string) string {
	sum := sha256.Sum256([]byte(before + text))
	return hex.EncodeToString(sum[:])
}

func appendLine(ctx context.Context, tx store.Tx, l Line) error {
	end, err := endOfLog(ctx, tx, l.Job.ID)
	if err != nil {
		return err
	}
	l.N = end.lines + 1
	b, err := json.Marshal(l.stored())
	if err != nil {
		return fmt.Errorf("jobs: line %d of the log: %w", l.N, err)
	}
	hash := hashOf(end.hash, string(b))
	head := end.record
	head.Value = strconv.Itoa(l.N) + " " + hash
	if err := tx.Write(ctx, store.Record{Kind: kindLine, Name: lineName(l.N), Value: hash + " " + string(b)}); err != nil {
		return err
	}
	return tx.Write(ctx, head)
}

type logEnd struct {
	record store.Record // number and hash of the last line
	lines  int          // number of the last line; 0 if the log is empty
	hash   string       // of the last line; "" if the log is empty
}

// endOfLog reads the end of the log. If its record was removed, the error is errHeadLost.
// own is the id of the job that the transaction has written, or 0: the first job of a log
// is written before its line.
func endOfLog(ctx context.Context, from reader, own int) (logEnd, error) {
	rs, err := from.Records(ctx, kindHead, "", 1)
	if err == nil && len(rs) == 0 {
		rs, err = headOfEmpty(ctx, from, own)
	}
	if err != nil || len(rs) == 0 {
		return logEnd{record: store.Record{Kind: kindHead, Name: headName}}, err
	}
	number, hash, _ := strings.Cut(rs[0].Value, " ")
	lines, err := strconv.Atoi(number)
	if err != nil {
		err = changed("jobs: the end of the log: %v", err)
	}
	return logEnd{record: rs[0], lines: lines, hash: hash}, err
}

// ErrLogChanged is matched by errors about a log that was changed or is incomplete. Other
// errors of [Jobs.Log] mean that it could not be read.
var ErrLogChanged = errors.New("jobs: the log was changed")

type changedError struct{ text string }

func (e changedError) Error() string { return e.text }

func (changedError) Is(target error) bool { return target == ErrLogChanged }

func changed(format string, args ...any) error { return changedError{fmt.Sprintf(format, args...)} }

var errHeadLost = changed("jobs: the record %q of the log was removed, although there are lines or jobs. Jobs and orders are refused "+
	"until it is restored, since their lines cannot be written: see \"Jobs, and who did what\" in docs/dead-letters.md", kindHead)

// headOfEmpty returns an empty list if the log is empty, or errHeadLost.
func headOfEmpty(ctx context.Context, from reader, own int) ([]store.Record, error) {
	for _, kind := range []string{kindLine, kindJob, kindEnded} {
		rs, err := from.Records(ctx, kind, "", 2)
		if err != nil {
			return nil, err
		}
		isOther := func(r store.Record) bool { return kind == kindLine || r.Name != lineName(own) }
		if !slices.ContainsFunc(rs, isOther) {
			continue
		}
		rs, err = from.Records(ctx, kindHead, "", 1) // another process may have begun the log
		if err == nil && len(rs) == 0 {
			err = errHeadLost
		}
		return rs, err
	}
	return nil, nil
}

// nextID returns the id of a new job, which is the number of its first line.
func nextID(ctx context.Context, from reader) (int, error) {
	end, err := endOfLog(ctx, from, 0)
	if err != nil {
		return 0, err
	}
	id := end.lines + 1
	job, err := get(ctx, from, id)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil
	}
	if err != nil && !job.unreadable {
		return 0, err
	}
	now, err := endOfLog(ctx, from, 0)
	if err == nil && now.lines > end.lines {
		err = store.ErrChanged // another process has started the job
	}
	if err == nil {
		err = fmt.Errorf("%w, so a new job cannot be numbered: restore the log from a backup", cutError{end.lines, id})
	}
	return 0, err
}

type cutError struct{ last, job int }

func (e cutError) Error() string {
	return fmt.Sprintf("jobs: the log ends at line %d, and job %d exists, which began in line %d: the end of the log was removed", e.last, e.job, e.job)
}

func (cutError) Is(target error) bool { return target == ErrLogChanged }

// lineName sorts as the number does.
func lineName(n int) string { return fmt.Sprintf("%012d", n) }

// Log returns the lines of the log, the oldest first. It ends with an error that names a
// line that was changed, is missing or was added by others. After the last line it
// returns an error if the record of an ended job differs from the line about its end, or
// if a job began after the last line. These errors match [ErrLogChanged]; others mean
// that the log could not be read.
func (j *Jobs) Log(ctx context.Context) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		records, err := j.readJobRecords(ctx) // before the lines: a job is written with its line
		if err != nil {
			yield(Line{}, err)
			return
		}
		var last Line
		for more := true; more; {
			rs, err := j.engine.Records(ctx, kindLine, lineName(last.N), page)
			more = len(rs) == page
			for _, r := range rs {
				last, err = readLine(r, last)
				if err != nil {
					break
				}
				records.match(last.Job)
				if !yield(last, nil) {
					return
				}
			}
			if err == nil && !more {
				err = j.checkEnd(ctx, last)
			}
			if err == nil && !more {
				err = records.check(last.N)
			}
			if err != nil {
				yield(Line{}, err)
				return
			}
		}
	}
}

// LogLine returns a line of the log by its number, such as a job's id for its start. It
// checks the line only against the line before. The error matches [fs.ErrNotExist] if the
// line does not exist.
func (j *Jobs) LogLine(ctx context.Context, n int) (Line, error) {
	rs, err := j.engine.Records(ctx, kindLine, lineName(max(0, n-2)), 2)
	if err != nil {
		return Line{}, err
	}
	var before Line
	if n > 1 && len(rs) > 0 && rs[0].Name == lineName(n-1) {
		before.N = n - 1
		before.Hash, _, _ = strings.Cut(rs[0].Value, " ")
		rs = rs[1:]
	}
	if n < 1 || len(rs) == 0 || rs[0].Name != lineName(n) {
		return Line{}, missingLineError(n)
	}
	return readLine(rs[0], before)
}

type missingLineError int

func (n missingLineError) Error() string {
	return fmt.Sprintf("jobs: the log does not have a line %d", int(n))
}

func (missingLineError) Is(target error) bool { return target == fs.ErrNotExist }

// checkEnd returns an error if the last line that was read cannot be the end of the log,
// to which another line may have been added since.
func (j *Jobs) checkEnd(ctx context.Context, last Line) error {
	end, err := endOfLog(ctx, j.engine, 0)
	if err != nil {
		return err
	}
	if end.lines > last.N {
		rs, err := j.engine.Records(ctx, kindLine, lineName(last.N), 1)
		if err != nil {
			return err
		}
		if len(rs) == 0 {
			return changed("jobs: the lines of the log behind %d are missing: it had %d", last.N, end.lines)
		}
	}
	if end.lines < last.N || end.lines == last.N && end.hash != last.Hash {
		return changed("jobs: line %d of the log, its last, was added or changed", last.N)
	}
	return nil
}

func readLine(r store.Record, before Line) (l Line, err error) {
	n := before.N + 1
	hash, text, _ := strings.Cut(r.Value, " ")
	switch {
	case r.Name != lineName(n):
		return before, changed("jobs: line %d of the log is missing", n)
	case hashOf(before.Hash, text) != hash:
		return before, changed("jobs: line %d of the log was changed, or the line before it", n)
	}
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return before, fmt.Errorf("jobs: line %d of the log: %w", n, err)
	}
	l.Hash = hash
	if l.Backend != nil {
		l.Event = eventOf(l.Event)
		l.Backend.Event = eventOf(l.Backend.Event)
	}
	return l, nil
}

// stored returns the line as its record has it: with the stored names, and without the
// job's bounds, which may be long.
func (l Line) stored() Line {
	l.Job.Bounds = nil
	if l.Backend == nil {
		return l
	}
	order := l.Backend.stored()
	l.Event, l.Backend = order.Event, &order
	return l
}
