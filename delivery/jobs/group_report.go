package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
)

// GroupReport is a count of the groups of a queue, as the engine keeps it for all
// consoles.
type GroupReport struct {
	Queue    string        `json:"queue"`
	At       time.Time     `json:"at"`   // end of the count, by the engine's clock
	Took     time.Duration `json:"took"` // in ns, including pauses
	Messages int           `json:"messages"`
	Groups   []Group       `json:"groups"`         // the largest
	More     int           `json:"more,omitempty"` // groups that are left out
}

const (
	keptGroups      = 30
	keptExampleText = 1000 // bytes of Group.ExampleText
)

// KeepGroups replaces the report that the engine keeps. It sets Queue and At, and keeps
// the 30 largest groups. The record stays when the queue changes; a report without
// messages removes it.
func (j *Jobs) KeepGroups(ctx context.Context, queue string, r GroupReport) error {
	r.Queue = queue
	if n := len(r.Groups) - keptGroups; n > 0 {
		r.More += n
		r.Groups = r.Groups[:keptGroups]
	}
	groups := make([]Group, len(r.Groups))
	for i, g := range r.Groups {
		g.ExampleText = beginningOf(g.ExampleText, keptExampleText)
		groups[i] = g
	}
	r.Groups = groups
	return j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		there, err := recordNamed(ctx, tx, kindGroups, queue)
		if err != nil {
			return err
		}
		r.At = tx.Now().UTC()
		text, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("jobs: the groups of queue %q: %w", queue, err)
		}
		there.Value = string(text)
		if r.Messages == 0 {
			there.Value = "" // removes the record
		}
		if there.Value == "" && there.Version == 0 {
			return nil
		}
		return tx.Write(ctx, there)
	})
}

// KeptGroups returns the report that the engine keeps of a queue, or false if there is no
// report that this version can read.
func (j *Jobs) KeptGroups(ctx context.Context, queue string) (r GroupReport, isThere bool, err error) {
	there, err := recordNamed(ctx, j.engine, kindGroups, queue)
	if err != nil || there.Value == "" {
		return GroupReport{}, false, err
	}
	isReadable := json.Unmarshal([]byte(there.Value), &r) == nil
	if !isReadable { // written by a later version: this version counts again
		return GroupReport{}, false, nil
	}
	return r, true, nil
}

// beginningOf returns up to n bytes of a text, in whole characters.
func beginningOf(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// recordNamed returns the record with a name. If it does not exist, its version is 0 and
// its value empty. recordNamed reads only names near it.
func recordNamed(ctx context.Context, from reader, kind, name string) (store.Record, error) {
	_, size := utf8.DecodeLastRuneInString(name)
	after := name[:len(name)-size]
	for {
		rs, err := from.Records(ctx, kind, after, 10)
		if err != nil {
			return store.Record{}, err
		}
		for _, r := range rs {
			if r.Name == name {
				return r, nil
			}
			after = r.Name
		}
		if len(rs) < 10 || after > name {
			return store.Record{Kind: kind, Name: name}, nil
		}
	}
}
