package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/vfs"
)

const (
	pageSize  = 1000   // messages per read
	deadQueue = "dead" // the dead letters of earlier versions
)

func (a *app) dead() *cobra.Command {
	c := group("dead", "Dead letters: messages that were given up",
		a.deadList(), a.deadShow(), a.deadCount(), a.deadGroups(), a.deadPurge(), a.deadMerge(), a.deadExport(), a.deadImport())
	c.PersistentFlags().String("queue", deadQueue, "the `QUEUE` of the dead letters, such as orders-dead (default: the only one)")
	c.PersistentFlags().Lookup("queue").DefValue = "" // only earlier versions have the queue "dead"
	return c
}

func queueOf(c *cobra.Command) string { return c.Flag("queue").Value.String() }

// deadOf returns the dead letter queue of a command. Without --queue, and if the default
// queue is empty, it returns an error that lists the others. If there is only one, a
// command that only reads takes it.
func (a *app) deadOf(ctx context.Context, c *cobra.Command, db *database, reads bool) (string, error) {
	queue := queueOf(c)
	if queue != deadQueue || c.Flag("queue").Changed {
		return queue, mustExist(ctx, db.store, queue)
	}
	queues, err := db.store.Queues(ctx)
	if err != nil || slices.Contains(queues, queue) { // topics cannot be listed without a group
		return queue, nil //nolint:nilerr // the default queue
	}
	queues = ofDeadLetters(queues)
	switch {
	case len(queues) == 0:
		return queue, nil
	case len(queues) == 1 && reads:
		a.note("Queue %s:", queues[0])
		return queues[0], nil
	}
	return "", whichQueue(queues)
}

// deadToFill returns the queue for an import. Without --queue it is the default queue if
// that has messages. Otherwise it is an error, because programs do not read messages
// imported under another name.
func deadToFill(ctx context.Context, c *cobra.Command, db *database) (string, error) {
	queue := queueOf(c)
	if c.Flag("queue").Changed {
		return queue, nil
	}
	queues, err := db.store.Queues(ctx)
	if err != nil { // topics cannot be listed without a group, and the tables may be missing
		queues = nil
	}
	if slices.Contains(queues, queue) {
		return queue, nil
	}
	return "", whichQueue(ofDeadLetters(queues))
}

// ofDeadLetters returns the queues of dead letters.
func ofDeadLetters(queues []string) []string {
	return slices.DeleteFunc(queues, func(q string) bool { return storearg.PartOf(q).Role != storearg.RoleDead })
}

func whichQueue(names []string) error {
	if len(names) == 0 {
		return usagef("which queue? Add --queue QUEUE, such as --queue orders-dead")
	}
	return usagef("which queue? Add --queue %s", strings.Join(names, ", or --queue "))
}

// reads runs f with the queue of a command that only reads.
func (a *app) reads(c *cobra.Command, f func(ctx context.Context, db *database, queue string) error) error {
	return a.with(c.Context(), func(ctx context.Context, db *database) error {
		queue, err := a.deadOf(ctx, c, db, true)
		if err != nil {
			return err
		}
		return f(ctx, db, queue)
	})
}

type entry struct {
	Position    int64         `json:"position"`
	Arrived     time.Time     `json:"arrived"`
	LeasedUntil time.Time     `json:"leasedUntil,omitzero"`
	Held        bool          `json:"held,omitempty"`
	Message     store.Message `json:"message"`
}

func newEntry(e store.Entry) entry {
	return entry{e.Position, e.Arrived, e.LeasedUntil, e.Held, e.Message}
}

// withoutSecretsIn hides the secrets of URLs in a message's errors, perhaps stored by
// other programs.
func withoutSecretsIn(m *store.Message) {
	m.Meta.LastError = guard.WithoutSecrets(m.Meta.LastError)
	m.Meta.Timeline = slices.Clone(m.Meta.Timeline)
	for i := range m.Meta.Timeline {
		m.Meta.Timeline[i].Error = guard.WithoutSecrets(m.Meta.Timeline[i].Error)
	}
}

func (a *app) deadList() *cobra.Command {
	var f filter
	var limit int
	var after int64
	c := &cobra.Command{
		Use: "list [ID]...", Short: "List dead letters, the oldest first",
		RunE: func(c *cobra.Command, ids []string) error {
			chosen, err := f.read(a, ids)
			if err != nil {
				return err
			}
			if limit < 0 || after < 0 {
				return usagef("--max %d and --after %d must not be negative", limit, after)
			}
			return a.reads(c, func(ctx context.Context, db *database, queue string) error {
				return a.list(ctx, db, queue, chosen, after, limit)
			})
		},
	}
	f.flags(c)
	c.Flags().IntVar(&limit, "max", 50, "at most `N` messages; 0 for all")
	c.Flags().Int64Var(&after, "after", 0, "begin behind this `POSITION`: the next page")
	output{a}.flag(c)
	return c
}

var listColumns = []column{
	{name: "ARRIVED"},
	{name: "ID", whole: true},
	{name: "CAUSE", least: 9},
	{name: "TRIES", right: true},
	{name: "PROVIDER", least: 5},
	{name: "LAST ERROR", least: 10, error: true},
}

func (a *app) list(ctx context.Context, db *database, queue string, f store.Filter, after int64, limit int) error {
	table := pages{app: a, columns: listColumns}
	shown := 0
	for page := (store.Page{After: after}); ; {
		page.Max = pageSize
		if limit > 0 {
			page.Max = min(page.Max, limit-shown+1) // one more shows whether there are others
		}
		entries, err := db.store.List(ctx, queue, f, page)
		if err != nil {
			return err
		}
		last := len(entries) == 0
		more := limit > 0 && len(entries) > limit-shown
		if more {
			entries = entries[:limit-shown]
		}
		var rows [][]string
		for _, e := range entries {
			page.After = e.Position
			withoutSecretsIn(&e.Message)
			if a.json {
				if err := a.object(newEntry(e)); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, []string{
				when(e.Arrived), e.Meta.ID, e.Cause.String(), strconv.Itoa(e.Meta.Attempts), e.Meta.Provider, e.Meta.LastError,
			})
		}
		if len(rows) > 0 {
			if err := table.write(rows); err != nil {
				return err
			}
		}
		shown += len(entries)
		if more {
			a.note("There are more: --after %d", page.After)
			return nil
		}
		if last {
			break
		}
	}
	if shown == 0 {
		a.note("No message of queue %s matches.", strconv.Quote(queue))
	}
	return nil
}

// here returns an error if the queue lacks an id of the filter.
func here(ctx context.Context, s queues, queue string, f store.Filter) error {
	missing := map[string]bool{}
	for _, id := range f.IDs {
		missing[id] = true
	}
	for page := (store.Page{Max: pageSize}); len(missing) > 0; {
		entries, err := s.List(ctx, queue, f, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			delete(missing, e.Meta.ID)
			page.After = e.Position
		}
		if len(entries) == 0 {
			break
		}
	}
	if len(missing) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(missing))
	for i := range ids {
		ids[i] = strconv.Quote(ids[i])
	}
	f.IDs = nil
	if isAll(f) {
		return fmt.Errorf("queue %q has no message %s", queue, strings.Join(ids, ", "))
	}
	return fmt.Errorf("queue %q has no message %s that the other flags choose", queue, strings.Join(ids, ", "))
}

func (a *app) deadShow() *cobra.Command {
	var raw bool
	c := &cobra.Command{
		Use: "show ID", Short: "Show a dead letter: its history and its payload", Args: one("ID"),
		Long: `Show a dead letter: its history, its calls and its payload. CALL is the visit
and the attempt in it, BACKEND how the service was when the call had ended, if
the operator has one (asyncop.WithBackend).`,
		RunE: func(c *cobra.Command, ids []string) error {
			return a.reads(c, func(ctx context.Context, db *database, queue string) error {
				entries, err := db.store.List(ctx, queue, store.Filter{IDs: ids}, store.Page{Max: pageSize})
				switch {
				case err != nil:
					return err
				case len(entries) == 0:
					return fmt.Errorf("queue %q has no message %q", queue, ids[0])
				case raw && len(entries) > 1:
					return fmt.Errorf("queue %q has the message %q %d times, in different visits", queue, ids[0], len(entries))
				case raw:
					return a.print(string(entries[0].Payload))
				}
				for i, e := range entries {
					if i > 0 && !a.json {
						if err := a.print("\n"); err != nil {
							return err
						}
					}
					if err := a.show(e); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&raw, "raw", false, "write the payload alone, byte for byte")
	return c
}

func (a *app) show(e store.Entry) error {
	withoutSecretsIn(&e.Message)
	if a.json {
		return a.object(newEntry(e))
	}
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-15s %s\n", name, escaped(value))
		}
	}
	timeField := func(name string, t time.Time) {
		if !t.IsZero() {
			line(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	m := &e.Meta
	line("id", m.ID)
	line("position", strconv.FormatInt(e.Position, 10))
	line("cause", e.Cause.String())
	line("arrived", e.Arrived.UTC().Format(time.RFC3339Nano))
	timeField("leased until", e.LeasedUntil)
	if e.Held {
		line("held", "until it is released (weir release)")
	}
	line("key", m.Key)
	line("source", m.Origin.Source)
	line("partition", m.Origin.Partition)
	line("position there", m.Origin.Position)
	line("provider", m.Provider)
	line("visits", strconv.Itoa(m.Visit))
	line("attempts", strconv.Itoa(m.Attempts))
	line("merges", strconv.Itoa(m.Merges))
	timeField("first failure", m.FirstFailure)
	timeField("last failure", m.LastFailure)
	line("request", m.Request)
	timeField("remembered", m.Remembered)
	if e.Cause != "" {
		line("repetition", repetition(&e, a.clock.Now()))
	}
	line("last error", m.LastError)
	line("reasons", strings.Join(m.Reasons, ", "))
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		line("header", name+": "+m.Headers[name])
	}
	fmt.Fprintf(&b, "payload         %d bytes\n", len(e.Payload))
	err := a.print(b.String())
	if err == nil {
		err = a.showTimeline(&e)
	}
	if err != nil {
		return err
	}
	b.Reset()
	if len(e.Payload) > 0 {
		if utf8.Valid(e.Payload) {
			b.WriteString("\n" + strings.TrimSuffix(escapedLines(string(e.Payload)), "\n") + "\n")
		} else {
			b.WriteString("\n" + hex.Dump(e.Payload))
		}
	}
	return a.print(b.String())
}

func repetition(e *store.Entry, now time.Time) string {
	r := e.Repetition(now)
	switch r {
	case store.RepeatSafeUntil:
		return r.String() + " " + e.Meta.Remembered.UTC().Format(time.RFC3339)
	case store.RepeatPointless:
		return r.String() + ": it fails again, unless something has changed"
	case store.RepeatInDoubt:
		return r.String() + ": a call may have taken effect"
	case store.RepeatLookFirst:
		return r.String() + ": it is not known how far its workers came"
	default:
		return r.String()
	}
}

type counted struct {
	Queue    string              `json:"queue"`
	Messages int                 `json:"messages"`
	Held     int                 `json:"held,omitempty"`
	Oldest   time.Time           `json:"oldest,omitzero"`
	Age      float64             `json:"ageSeconds,omitzero"`
	Next     time.Time           `json:"next,omitzero"`
	Causes   map[store.Cause]int `json:"causes,omitempty"`
	Reasons  map[string]int      `json:"reasons,omitempty"`
}

func newCounted(queue string, c store.Counts) counted {
	n := counted{Queue: queue, Messages: c.Messages, Held: c.Held, Oldest: c.Oldest, Age: c.Age.Seconds(), Causes: maps.Clone(c.Causes), Reasons: c.Reasons}
	delete(n.Causes, "") // of messages that are not dead letters
	return n
}

func (a *app) deadCount() *cobra.Command {
	var f filter
	c := &cobra.Command{
		Use: "count", Short: "Count dead letters, by cause and reason", Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := f.read(a, nil)
			if err != nil {
				return err
			}
			return a.reads(c, func(ctx context.Context, db *database, queue string) error {
				n, err := db.store.Count(ctx, queue, chosen)
				if err != nil {
					return err
				}
				if a.json {
					return a.object(newCounted(queue, n))
				}
				rows := [][]string{{"all", "", strconv.Itoa(n.Messages)}}
				if n.Held > 0 {
					rows = append(rows, []string{"held", "", strconv.Itoa(n.Held)})
				}
				for _, cause := range byNumber(n.Causes) {
					rows = append(rows, []string{"cause", cause.String(), strconv.Itoa(n.Causes[cause])})
				}
				for _, reason := range byNumber(n.Reasons) {
					rows = append(rows, []string{"reason", reason, strconv.Itoa(n.Reasons[reason])})
				}
				err = a.table([]column{{name: "OF"}, {name: "NAME", least: 10}, {name: "MESSAGES", right: true}}, rows)
				if err == nil && n.Messages > 0 {
					err = a.print(fmt.Sprintf("\nThe oldest arrived at %s, %s ago.\n", when(n.Oldest), age(n.Age)))
				}
				return err
			})
		},
	}
	f.flags(c)
	return c
}

func (a *app) deadGroups() *cobra.Command {
	var f filter
	var limit int
	c := &cobra.Command{
		Use: "groups", Short: "Show dead letters that failed alike in groups", Args: none,
		Long: `Show dead letters in groups: those with the same cause and reason, and the same
error but for the numbers and ids in it, which are #. The largest group comes
first. EXAMPLE is the id of its last one: weir dead show has its history.`,
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := f.read(a, nil)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usagef("--max %d must not be negative", limit)
			}
			return a.reads(c, func(ctx context.Context, db *database, queue string) error {
				groups, err := jobs.Groups(ctx, db.store, queue, chosen)
				if err != nil {
					return err
				}
				return a.showGroups(queue, groups, limit)
			})
		},
	}
	f.flags(c)
	c.Flags().IntVar(&limit, "max", 20, "at most `N` groups; 0 for all")
	output{a}.flag(c)
	return c
}

func (a *app) showGroups(queue string, groups []jobs.Group, limit int) error {
	more := 0
	if limit > 0 && len(groups) > limit {
		more, groups = len(groups)-limit, groups[:limit]
	}
	var rows [][]string
	for _, g := range groups {
		if a.json {
			if err := a.object(g); err != nil {
				return err
			}
			continue
		}
		if g.Rest {
			g.Error = "others"
		}
		rows = append(rows, []string{strconv.Itoa(g.Count), g.Last.UTC().Format("01-02 15:04Z"), g.Cause.String(), g.Reason, g.Error, g.Example})
	}
	switch {
	case len(groups) == 0:
		a.note("No message of queue %s matches.", strconv.Quote(queue))
	case !a.json:
		if err := a.table([]column{
			{name: "COUNT", right: true},
			{name: "LAST"},
			{name: "CAUSE", least: 9},
			{name: "REASON", least: 6},
			{name: "ERROR", least: 10, error: true},
			{name: "EXAMPLE", whole: true},
		}, rows); err != nil {
			return err
		}
	}
	if more > 0 {
		a.note("There are %d groups more: --max 0 shows all", more)
	}
	return nil
}

func byNumber[K ~string](m map[K]int) []K {
	return slices.SortedFunc(maps.Keys(m), func(x, y K) int {
		if m[x] != m[y] {
			return m[y] - m[x]
		}
		return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) // by displayed name
	})
}

func (a *app) deadExport() *cobra.Command {
	var f filter
	c := &cobra.Command{
		Use: "export", Short: "Write dead letters as JSON lines, and leave them where they are", Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := f.read(a, nil)
			if err != nil {
				return err
			}
			return a.reads(c, func(ctx context.Context, db *database, queue string) error {
				n, err := export(ctx, db.store, queue, chosen, a.out)
				if err == nil {
					a.note("%s written", messages(n))
				}
				return err
			})
		},
	}
	f.flags(c)
	return c
}

func (a *app) deadImport() *cobra.Command {
	var replace bool
	var p person
	c := &cobra.Command{
		Use: "import FILE", Short: "Put what export has written into the dead letters", Args: one("FILE"),
		Long: `Put what export has written into the dead letters; - is standard input. A
message that is there already stays as it is, unless --replace is given, so an
import that failed is repeated without harm. On Kafka it is there twice then.
The log gets a line when the import starts and one when it ends, except on
Kafka, which has no log.

FILE may also be a directory that package deadfile has written. Its program must
have ended. The directory is only read: delete it after the import. This release
is the last that reads such directories.`,
		RunE: func(c *cobra.Command, files []string) error {
			from, done, err := a.importSource(c.Context(), files[0])
			if err != nil {
				return err
			}
			defer done()
			return a.with(c.Context(), func(ctx context.Context, db *database) error {
				by, why := p.read(c)
				queue, err := deadToFill(ctx, c, db)
				if err != nil {
					return err
				}
				return a.importFrom(ctx, db, importSpec{queue: queue, replace: replace, by: by, why: why}, from)
			})
		},
	}
	c.Flags().BoolVar(&a.create, "create", false, "make the database of SQLite, and the tables of SQLite and PostgreSQL, if they are not there")
	c.Flags().BoolVar(&replace, "replace", false, "replace queued messages that have the same id as a message of the file")
	p.flags(c)
	return c
}

// importSource returns the messages of a file, standard input ("-") or a directory of
// dead letters, and a function that releases it.
func (a *app) importSource(ctx context.Context, name string) (from iter.Seq2[store.Message, error], done func(), err error) {
	if name == "-" {
		return exportedMessages(interruptible(ctx, a.in)), func() {}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if info.IsDir() {
		d, err := openDeadDirectory(vfs.OS(), name, a.note)
		if err != nil {
			return nil, nil, err
		}
		return d.messages(), d.close, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return exportedMessages(interruptible(ctx, file)), func() { _ = file.Close() }, nil // it was only read
}

// interruptible returns a reader that fails when ctx ends, even while r waits.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	read, write := io.Pipe()
	go func() { // cannot be cancelled, so it may outlive the reader
		_, err := io.Copy(write, r)
		write.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { write.CloseWithError(errors.New("interrupted")) })
	return read
}

type importedJSON struct {
	Read     int `json:"read"`
	New      int `json:"new"`
	Replaced int `json:"replaced"`
}

type importSpec struct {
	queue   string
	replace bool
	by, why string
}

func (a *app) importFrom(ctx context.Context, db *database, spec importSpec, from iter.Seq2[store.Message, error]) error {
	s, ok := db.store.(inspected)
	if !ok {
		return a.importWithoutLog(ctx, db.store, spec, from)
	}
	j, err := s.jobs()
	if err != nil {
		return err
	}
	p := &replacing{inspected: s, replace: spec.replace}
	read := 0
	_, err = j.Import(ctx, spec.queue, spec.by, spec.why, func(ctx context.Context) (done, skipped int, err error) {
		read, err = importMessages(ctx, p, spec.queue, from)
		done = p.put + p.replaced
		return done, read - done, err
	})
	if a.json {
		return errors.Join(a.object(importedJSON{read, p.put, p.replaced}), err)
	}
	text := fmt.Sprintf("%s read: %d new", messages(read), p.put)
	if p.replaced > 0 {
		text += fmt.Sprintf(", %d replaced", p.replaced)
	}
	left := read - p.put - p.replaced
	switch {
	case left > 0 && spec.replace:
		text += fmt.Sprintf(", %d not replaced: a merge or a consumer has them", left)
	case left > 0:
		text += fmt.Sprintf(", %d there already (--replace replaces them)", left)
	}
	return errors.Join(a.print(text+"\n"), err)
}

// importWithoutLog imports into Kafka, which can neither inspect queues nor keep a log.
func (a *app) importWithoutLog(ctx context.Context, q queues, spec importSpec, from iter.Seq2[store.Message, error]) error {
	if spec.replace {
		return usagef("--replace is for sqlite:, postgres:// and nats://")
	}
	n, err := importMessages(ctx, q, spec.queue, from)
	if a.json {
		return errors.Join(a.object(map[string]int{"read": n}), err)
	}
	return errors.Join(a.print(messages(n)+" read\n"), err)
}

// replacing puts messages and counts the new ones.
type replacing struct {
	inspected
	replace       bool
	put, replaced int
}

// Put implements queues.
func (r *replacing) Put(ctx context.Context, queue string, ms ...store.Message) error {
	f := store.Filter{}
	for _, m := range ms {
		f.IDs = append(f.IDs, m.Meta.ID)
	}
	there := map[store.Identity]bool{}
	for page := (store.Page{Max: pageSize}); ; {
		entries, err := r.List(ctx, queue, f, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			there[e.Identity()] = true
			page.After = e.Position
		}
		if len(entries) == 0 {
			break
		}
	}
	fresh, known := map[store.Identity]bool{}, map[store.Identity]store.Message{}
	for _, m := range ms {
		if there[m.Identity()] {
			known[m.Identity()] = m
		} else {
			fresh[m.Identity()] = true
		}
	}
	if err := r.inspected.Put(ctx, queue, ms...); err != nil {
		return err
	}
	r.put += len(fresh)
	if !r.replace || len(known) == 0 {
		return nil
	}
	n, err := r.swap(ctx, queue, f, known)
	r.replaced += n
	return err
}

// swap replaces messages that have the same identity, and returns their number.
func (r *replacing) swap(ctx context.Context, queue string, f store.Filter, known map[store.Identity]store.Message) (n int, err error) {
	for page := (store.Page{Max: pageSize}); ; {
		claimed, err := r.Claim(ctx, queue, f, page, time.Minute)
		if err != nil || len(claimed) == 0 {
			return n, err
		}
		var moves []store.Move
		var others []store.Lease
		for _, l := range claimed {
			page.After = l.Position
			if m, ok := known[l.Identity()]; ok {
				moves = append(moves, store.Move{Lease: l.Lease, Queue: queue, Message: m})
				delete(known, l.Identity())
			} else {
				others = append(others, l.Lease)
			}
		}
		if err := r.Release(ctx, 0, others...); err != nil && !storearg.IsLost(err) {
			return n, err
		}
		if err := r.Move(ctx, moves...); err != nil {
			return n, err
		}
		n += len(moves)
	}
}
