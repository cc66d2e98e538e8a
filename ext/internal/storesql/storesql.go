// Package storesql is shared by the SQL stores of delivery/store: messages as columns,
// filters as conditions.
package storesql

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// Dialect has the parts of a condition that differ by database. %s stands for a
// parameter.
type Dialect struct {
	Key       string // the key, as indexed
	HasReason string // the column meta has the reason
	HasError  string // its lastError contains the text
	Time      func(time.Time) any
}

// Row is a message to put.
type Row struct {
	Queue      string
	MetaColumn string
	*store.Message
}

// NewRow returns a message's row.
func NewRow(queue string, m *store.Message) (Row, error) {
	column, err := metaColumn(m)
	return Row{queue, column, m}, err
}

// NewRows returns the rows of messages for a queue.
func NewRows(queue string, ms []store.Message) ([]Row, error) {
	return rowsOf(len(ms), func(i int) (string, *store.Message) { return queue, &ms[i] })
}

// MovedRows returns the rows of messages that are moved or handed over.
func MovedRows(moves []store.Move) ([]Row, error) {
	return rowsOf(len(moves), func(i int) (string, *store.Message) { return moves[i].Queue, &moves[i].Message })
}

// ReplacementRows returns the rows that replace messages in their queues.
func ReplacementRows(rs []store.Replacement) ([]Row, error) {
	return rowsOf(len(rs), func(i int) (string, *store.Message) { return rs[i].Lease.Queue, &rs[i].Message })
}

func rowsOf(n int, message func(i int) (queue string, m *store.Message)) ([]Row, error) {
	rows := make([]Row, n)
	for i := range rows {
		var err error
		rows[i], err = NewRow(message(i))
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// metaColumn returns the column meta: JSON in UTF-8 without NUL.
func metaColumn(m *store.Message) (string, error) {
	meta := m.Meta
	meta.Due = time.Time{}       // has its own column
	b, err := meta.MarshalJSON() // json.Marshal would parse it again
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	return string(b), nil
}

// IDAndPut returns the fields ID and Put of a message as its column meta has them.
func IDAndPut(r *Row) (id, put string, err error) {
	var column map[string]any
	err = json.Unmarshal([]byte(r.MetaColumn), &column)
	if err != nil {
		return "", "", fmt.Errorf("store: %w", err)
	}
	id, _ = column["id"].(string)
	headers, _ := column["headers"].(map[string]any)
	put, _ = headers["Weir-Put"].(string)
	return id, put, nil
}

// ReadMeta reads a column that metaColumn has returned. If it is damaged, ReadMeta
// returns the damage and a substitute.
func ReadMeta(column []byte, position int64, due time.Time) (m message.Meta, damage error) {
	if err := m.UnmarshalJSON(column); err != nil { // json.Unmarshal would parse it twice
		damage = fmt.Errorf("store: the column meta of the row at position %d of weir_messages is damaged: %w", position, err)
		m = storearg.Damaged("weir_messages", strconv.FormatInt(position, 10), damage)
	}
	m.Due = due.UTC()
	return m, damage
}

// Where returns a filter as a condition on the columns meta, cause and arrived (" AND …",
// or ""), and appends its parameters to args.
func Where(d Dialect, f *store.Filter, args []any) (string, []any, error) {
	var b strings.Builder
	param := func(v any) string {
		args = append(args, v)
		return Param(len(args))
	}
	if len(f.IDs) > 0 {
		var params []string
		for _, id := range f.IDs {
			id, err := Escaped(id)
			if err != nil {
				return "", nil, err
			}
			params = append(params, param(id))
		}
		b.WriteString(" AND meta->>'id' IN (" + strings.Join(params, ", ") + ")")
	}
	for _, c := range []struct{ column, value string }{
		{d.Key, f.Key},
		{"meta->'origin'->>'source'", f.Source},
		{"meta->>'provider'", f.Provider},
	} {
		if c.value == "" {
			continue
		}
		value, err := Escaped(c.value)
		if err != nil {
			return "", nil, err
		}
		b.WriteString(" AND " + c.column + " = " + param(value))
	}
	for _, c := range []struct{ condition, value string }{
		{"cause = %s", string(f.Cause)},
		{d.HasReason, f.Reason},
		{d.HasError, f.Error},
	} {
		if c.value != "" {
			fmt.Fprintf(&b, " AND "+c.condition, param(Readable(c.value)))
		}
	}
	if !f.Since.IsZero() {
		b.WriteString(" AND arrived >= " + param(d.Time(f.Since)))
	}
	if !f.Before.IsZero() {
		b.WriteString(" AND arrived < " + param(d.Time(f.Before)))
	}
	return b.String(), args, nil
}

// Param returns the name of the n-th parameter, from 1.
func Param(n int) string { return "$" + strconv.Itoa(n) }

// Escaped returns a name as in the column meta.
func Escaped(name string) (string, error) {
	b, err := json.Marshal(message.Meta{Key: name})
	if err != nil {
		return "", fmt.Errorf("store: filter: %w", err)
	}
	var s struct {
		Key string `json:"key"`
	}
	err = json.Unmarshal(b, &s)
	return s.Key, err
}

// Readable returns a text as databases accept it, like descriptive texts in the column
// meta.
func Readable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
