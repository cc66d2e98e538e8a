package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/vfs"
)

const (
	importBatch = 100       // messages per put
	maxLine     = 256 << 20 // bytes of a line in an imported file
)

// export writes a queue's messages that match f as lines of JSON and returns their
// number. It skips messages that arrive after it began.
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

// importMessages puts messages in a queue, a batch at a time, and returns how many it has
// put. Putting a queued message has no effect, so a failed import can be repeated. If the
// sequence fails, the messages before the error are put.
func importMessages(ctx context.Context, s queues, queue string, from iter.Seq2[store.Message, error]) (n int, err error) {
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
	for m, err := range from {
		if err != nil {
			err = fmt.Errorf("import into %q: %w", queue, err)
			err = errors.Join(err, put())
			return n, err
		}
		ms = append(ms, m)
		if len(ms) < importBatch {
			continue
		}
		if err := put(); err != nil {
			return n, err
		}
	}
	err = put()
	return n, err
}

// exportedMessages returns the messages of an exported file, and an error that names an
// unreadable line. A line has at most 256 MiB. A byte order mark is skipped, and a file
// that is compressed or not in UTF-8 is refused.
func exportedMessages(r io.Reader) iter.Seq2[store.Message, error] {
	return func(yield func(store.Message, error) bool) {
		buffered := bufio.NewReader(r)
		start, _ := buffered.Peek(vfs.TextStart) // an error is reported by the scanner
		mark, err := vfs.CheckText(start, "the file")
		if err == nil {
			_, err = buffered.Discard(mark)
		}
		if err != nil {
			yield(store.Message{}, err)
			return
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
				yield(store.Message{}, fmt.Errorf("line %d: %w", line, err))
				return
			}
			if !yield(m, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(store.Message{}, fmt.Errorf("line %d: %w", line+1, err))
		}
	}
}
