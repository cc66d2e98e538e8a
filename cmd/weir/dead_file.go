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
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/vfs"
)

const (
	importBatch = 100       // messages per put
	maxLine     = 256 << 20 // bytes of a line in an imported file
)

// export writes the messages of a queue that match f as lines of JSON and returns their
// number. It leaves the queue unchanged, and skips messages that arrive after it began.
func export(ctx context.Context, s queues, queue string, f store.Filter, w io.Writer) (n int, err error) {
	buffered := bufio.NewWriter(w)
	err = storearg.Each(ctx, s, queue, f, func(e store.Entry) error {
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

// importLines puts the messages of an exported file into a queue and returns their
// number. Putting a message that is already queued has no effect, so a failed import can
// be repeated. An error names its line; the messages before that line may have been put.
// A line has at most 256 MiB. A byte order mark is skipped. A file that is compressed or
// not in UTF-8 is refused.
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
	buffered := bufio.NewReader(r)
	start, _ := buffered.Peek(vfs.TextStart) // the scanner reports an error
	mark, err := vfs.CheckText(start, "the file")
	if err == nil {
		_, err = buffered.Discard(mark)
	}
	if err != nil {
		return 0, fmt.Errorf("import into %q: %w", queue, err)
	}
	lines := bufio.NewScanner(buffered)
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
