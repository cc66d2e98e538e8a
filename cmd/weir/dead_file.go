package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/weirflow/weir/delivery/store"
)

const (
	importBatch = 100       // messages that are put at once
	maxLine     = 256 << 20 // bytes of a line of a file that is imported
)

// export writes the messages of a queue that match f as lines of JSON, and returns how many. It does not change the queue, and leaves out
// messages that arrive after it began.
func export(ctx context.Context, s queues, queue string, f store.Filter, w io.Writer) (n int, err error) {
	buffered := bufio.NewWriter(w)
	err = each(ctx, s, queue, f, func(e store.Entry) error {
		line, err := json.Marshal(e.Message)
		if err == nil {
			_, err = buffered.Write(append(line, '\n'))
		}
		if err != nil {
			return fmt.Errorf("export of %q: %w", queue, err)
		}
		n++
		return nil
	})
	if err != nil {
		return n, err
	}
	return n, buffered.Flush()
}

// each calls do for the messages that match and are there now.
func each(ctx context.Context, s queues, queue string, f store.Filter, do func(store.Entry) error) error {
	counts, err := s.Count(ctx, queue, f)
	if err != nil || counts.Messages == 0 {
		return err
	}
	for p := (store.Page{Max: pageSize, Until: counts.Last}); ; {
		entries, err := s.List(ctx, queue, f, p)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			if err := do(e); err != nil {
				return err
			}
		}
		p.After = entries[len(entries)-1].Position
	}
}

// importLines puts the messages of a file that export wrote in a queue, and returns how many. Putting a message that is already queued has no
// effect, so an import that failed can be repeated. The error names the line; the messages before it may have been put. A line has at most 256
// MiB.
func importLines(ctx context.Context, s queues, queue string, r io.Reader) (n int, err error) {
	var ms []store.Message
	put := func() error {
		if len(ms) == 0 {
			return nil
		}
		if err := s.Put(ctx, queue, ms...); err != nil {
			return err
		}
		n += len(ms)
		ms = ms[:0]
		return nil
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	line := 0
	for lines.Scan() {
		line++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		var m store.Message
		if err := json.Unmarshal(text, &m); err != nil {
			err = fmt.Errorf("import into %q: line %d: %w", queue, line, err)
			err = errors.Join(err, put())
			return n, err
		}
		if ms = append(ms, m); len(ms) == importBatch {
			if err := put(); err != nil {
				return n, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		err = fmt.Errorf("import into %q: line %d: %w", queue, line+1, err)
		err = errors.Join(err, put())
		return n, err
	}
	err = put()
	return n, err
}
