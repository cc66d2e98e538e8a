package wire

import "encoding/binary"

// A schema is written as
//
//	version byte | number of types uvarint | types | root uvarint | number of table entries uvarint | entries
//
// where a type is its kind and, by kind, what it consists of: types are referred to by their places in the list, so
// recursive ones are no trouble. A table entry is the name of a registered type and its place.
const schemaVersion = 1

// maxTypes bounds the size of a schema that is read.
const maxTypes = 1 << 14

// schema is what values were written with.
type schema struct {
	root  *node
	table []entry
}

// appendSchema numbers the nodes of c as it meets them.
func (c *Codec) appendSchema(dst []byte) []byte {
	var nodes []*node
	seen := map[*node]bool{}
	var visit func(n *node)
	visit = func(n *node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		n.id = len(nodes)
		nodes = append(nodes, n)
		visit(n.key)
		visit(n.elem)
		for _, f := range n.fields {
			visit(f.node)
		}
	}
	visit(c.root)
	for _, e := range c.table {
		visit(e.node)
	}

	dst = binary.AppendUvarint(append(dst, schemaVersion), uint64(len(nodes)))
	for _, n := range nodes {
		dst = n.append(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(c.root.id))
	dst = binary.AppendUvarint(dst, uint64(len(c.table)))
	for _, e := range c.table {
		dst = binary.AppendUvarint(appendString(dst, e.name), uint64(e.node.id))
	}
	return dst
}

func (n *node) append(dst []byte) []byte {
	dst = append(dst, byte(n.kind))
	switch n.kind {
	case kindPointer, kindSlice:
		dst = binary.AppendUvarint(dst, uint64(n.elem.id))
	case kindArray:
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(n.n)), uint64(n.elem.id))
	case kindByteArray:
		dst = binary.AppendUvarint(dst, uint64(n.n))
	case kindMap:
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(n.key.id)), uint64(n.elem.id))
	case kindStruct:
		dst = binary.AppendUvarint(appendString(dst, n.name), uint64(len(n.fields)))
		for _, f := range n.fields {
			dst = binary.AppendUvarint(appendString(dst, f.name), uint64(f.node.id))
		}
	case kindInterface, kindBinary, kindGob, kindText:
		dst = appendString(dst, n.name)
	default:
	}
	return dst
}

// parseSchema reads a schema. It may be anything: no reference leads out of the list, but types may contain themselves,
// and code that follows them must count its steps.
func parseSchema(b []byte) (*schema, *Error) {
	d := &decoder{src: b}
	s, err := d.schema()
	if err != nil {
		return nil, &Error{Reason: "not a schema of the default codec", Err: err}
	}
	return s, nil
}

func (d *decoder) schema() (*schema, *Error) {
	version, err := d.byte()
	if err != nil {
		return nil, err
	}
	if version != schemaVersion {
		return nil, d.wrong("schema version %d is not known", version)
	}
	count, err := d.count()
	if err != nil {
		return nil, err
	}
	if count > maxTypes {
		return nil, d.wrong("%d types", count)
	}
	nodes := make([]*node, count)
	for i := range nodes {
		nodes[i] = &node{id: i}
	}
	for _, n := range nodes {
		if err := d.node(n, nodes); err != nil {
			return nil, err
		}
	}
	s := &schema{}
	if s.root, err = d.ref(nodes); err != nil {
		return nil, err
	}
	if count, err = d.count(); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for range count {
		name, err := d.bytes()
		if err != nil {
			return nil, err
		}
		n, err := d.ref(nodes)
		if err != nil {
			return nil, err
		}
		if names[string(name)] {
			return nil, d.wrong("the type %q twice", name)
		}
		names[string(name)] = true
		s.table = append(s.table, entry{name: string(name), node: n})
	}
	return s, d.end()
}

func (d *decoder) node(n *node, nodes []*node) *Error {
	b, err := d.byte()
	if err != nil {
		return err
	}
	n.kind = kind(b)
	if n.kind == 0 || n.kind >= endOfKinds {
		return d.wrong("%v is not known", n.kind)
	}
	switch n.kind {
	case kindArray, kindByteArray:
		length, err := d.uvarint()
		if err != nil {
			return err
		}
		n.n = int(length)
		if n.n < 0 || uint64(n.n) != length || n.n == 0 && n.kind == kindByteArray { // which would take no byte
			return d.wrong("an array of %d", length)
		}
	case kindMap:
		if n.key, err = d.ref(nodes); err != nil {
			return err
		}
	case kindStruct, kindInterface, kindBinary, kindGob, kindText:
		name, err := d.bytes()
		if err != nil {
			return err
		}
		n.name = string(name)
	default:
	}
	switch n.kind {
	case kindPointer, kindSlice, kindArray, kindMap:
		n.elem, err = d.ref(nodes)
	case kindStruct:
		err = d.fields(n, nodes)
	default:
	}
	return err
}

func (d *decoder) fields(n *node, nodes []*node) *Error {
	count, err := d.count()
	if err != nil {
		return err
	}
	for range count {
		name, err := d.bytes()
		if err != nil {
			return err
		}
		f := field{name: string(name)}
		if f.node, err = d.ref(nodes); err != nil {
			return err
		}
		n.fields = append(n.fields, f)
	}
	return nil
}

func (d *decoder) ref(nodes []*node) (*node, *Error) {
	i, err := d.uvarint()
	if err != nil {
		return nil, err
	}
	if i >= uint64(len(nodes)) {
		return nil, d.wrong("type %d of %d", i, len(nodes))
	}
	return nodes[i], nil
}
