package wire

import (
	"reflect"
	"slices"
)

// Reader reads values that were written under a schema into a Go type.
type Reader struct {
	root  *reader
	table []*tableReader // of the schema's table
	codec *Codec         // of the types of today
}

// reader reads a part.
type reader struct {
	wire   *node        // as it was written
	t      reflect.Type // what it is read into
	elem   *reader
	key    *reader
	fields []fieldReader // of a struct, in the order in which they were written
	fits   []bool        // of an interface: which of the table's types it can hold
}

type fieldReader struct {
	name  string
	index int     // in the Go struct
	r     *reader // nil: the struct has it no more, and it is skipped
	wire  *node
}

// tableReader reads a registered type. That it cannot be read matters only when there is such a value.
type tableReader struct {
	name string
	wire *node
	t    reflect.Type
	r    *reader
	err  *Error
}

// resolver matches what was written with the types of today.
//
// Numbers of one kind match whatever their sizes (a value that does not fit is an error), and a float32 becomes a
// float64. Fields match by name: one that the struct has no more is skipped, one that it has now is left zero. All else
// must be as it was.
type resolver struct {
	codec   *Codec
	schema  *schema
	readers map[pair]*reader
	fits    map[reflect.Type][]bool // by interface: which of the table's types implement it
}

type pair struct {
	wire *node
	now  *node
}

func (c *Codec) resolve(s *schema) (*Reader, *Error) {
	res := &resolver{codec: c, schema: s, readers: map[pair]*reader{}, fits: map[reflect.Type][]bool{}}
	out := &Reader{codec: c}
	for _, e := range s.table {
		tr := &tableReader{name: e.name, wire: e.node, t: lookup(e.name)}
		if tr.t == nil {
			tr.err = wrong("no type is registered as %q", e.name)
		}
		out.table = append(out.table, tr)
	}
	for _, tr := range out.table {
		if tr.err != nil {
			continue
		}
		i, known := c.index[tr.t]
		if !known { // of an interface that is no more, or has changed
			tr.err = wrong("type %v does not belong here", tr.t)
			continue
		}
		tr.r, tr.err = res.resolve(tr.wire, c.table[i].node, out)
		if tr.err != nil {
			// What was matched on the way may lead to what does not match. It is read through this entry only.
			clear(res.readers)
		}
	}
	clear(res.readers)
	var err *Error
	if out.root, err = res.resolve(s.root, c.root, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (res *resolver) resolve(wire, now *node, out *Reader) (_ *reader, err *Error) {
	key := pair{wire, now}
	if r, ok := res.readers[key]; ok {
		return r, nil
	}
	r := &reader{wire: wire, t: now.t}
	res.readers[key] = r
	if wire.kind != now.kind && !(wire.kind == kindFloat32 && now.kind == kindFloat64) || wire.n != now.n {
		return nil, wrong("it was stored as %v, and is %v now", wire, now)
	}
	switch wire.kind {
	case kindMap:
		if r.key, err = res.resolve(wire.key, now.key, out); err != nil {
			return nil, err.in("[key]")
		}
		if r.elem, err = res.resolve(wire.elem, now.elem, out); err != nil {
			return nil, err.in("[]")
		}
	case kindSlice, kindArray:
		if r.elem, err = res.resolve(wire.elem, now.elem, out); err != nil {
			return nil, err.in("[]")
		}
	case kindPointer:
		r.elem, err = res.resolve(wire.elem, now.elem, out)
	case kindStruct:
		err = res.fields(r, wire, now, out)
	case kindInterface:
		if res.fits[now.t] == nil {
			fits := make([]bool, len(out.table))
			for i, tr := range out.table {
				fits[i] = tr.t != nil && tr.t.Implements(now.t)
			}
			res.fits[now.t] = fits
		}
		r.fits = res.fits[now.t]
	default:
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (res *resolver) fields(r *reader, wire, now *node, out *Reader) *Error {
	seen := map[string]bool{}
	for _, f := range wire.fields {
		if seen[f.name] {
			return wrong("the schema has the field %q twice", f.name)
		}
		seen[f.name] = true
		fr := fieldReader{name: f.name, wire: f.node}
		if i := slices.IndexFunc(now.fields, func(g field) bool { return g.name == f.name }); i >= 0 {
			fr.index = now.fields[i].index
			var err *Error
			if fr.r, err = res.resolve(f.node, now.fields[i].node, out); err != nil {
				return err.in("." + f.name)
			}
		}
		r.fields = append(r.fields, fr)
	}
	return nil
}
