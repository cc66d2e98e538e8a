package wire

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Codec writes the values of one Go type.
type Codec struct {
	root   *node
	table  []entry // what interfaces may hold, in the order of names
	index  map[reflect.Type]int
	schema []byte
	reader *Reader // of what this codec writes
}

// entry is a registered type.
type entry struct {
	name string
	node *node
	key  *Error // why it cannot be a map's key, or nil
}

// New returns the codec of a type. What is registered later is not known to it.
func New(t reflect.Type) (*Codec, error) {
	compiler := compiler{nodes: map[nodeKey]*node{}}
	root, err := compiler.compile(t, "")
	if err != nil {
		return nil, err
	}
	c := &Codec{root: root, index: map[reflect.Type]int{}}
	if err := c.fillTable(&compiler); err != nil {
		return nil, err
	}
	c.schema = c.appendSchema(nil)
	s, err := parseSchema(c.schema)
	if err != nil {
		return nil, err
	}
	if c.reader, err = c.resolve(s); err != nil {
		return nil, err
	}
	return c, nil
}

// fillTable finds what the interfaces may hold; that may have interfaces in it, too.
func (c *Codec) fillTable(compiler *compiler) *Error {
	for i := 0; i < len(compiler.interfaces); i++ { // compiling adds to them
		iface := compiler.interfaces[i]
		found := implementers(iface.t)
		if len(found) == 0 {
			return wrong("no registered type implements the interface %v", iface.t).in(iface.path)
		}
		for _, r := range found {
			if _, known := c.index[r.t]; known {
				continue
			}
			node, err := compiler.compile(r.t, fmt.Sprintf("%s(%s)", iface.path, r.name))
			if err != nil {
				return err
			}
			c.index[r.t] = 0 // its place is not known yet
			c.table = append(c.table, entry{name: r.name, node: node, key: mapKey(node, "", true)})
		}
	}
	slices.SortFunc(c.table, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for i, e := range c.table {
		c.index[e.node.t] = i
	}
	return nil
}

// Schema describes what Append writes. It is the same for the same types and registrations. Not to be changed.
func (c *Codec) Schema() []byte { return c.schema }

// Reader returns what reads values that were written under a schema into today's Go type.
func (c *Codec) Reader(schema []byte) (*Reader, error) {
	if string(schema) == string(c.schema) {
		return c.reader, nil
	}
	s, err := parseSchema(schema)
	if err != nil {
		return nil, err
	}
	r, err := c.resolve(s)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// OwnReader returns the reader of what Append writes.
func (c *Codec) OwnReader() *Reader { return c.reader }
