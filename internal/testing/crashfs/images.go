package crashfs

import (
	"iter"
	"maps"
	"slices"
)

// Clone returns the file system as a killed process leaves it: everything visible, with
// its uncertain changes. Locks are free.
func (f *FS) Clone() *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &FS{root: cloner{}.clone(f.root), locks: map[string]bool{}, split: f.split, few: f.few}
}

type cloner map[*inode]*inode

func (c cloner) clone(n *inode) *inode {
	if n == nil {
		return nil
	}
	if done, ok := c[n]; ok {
		return done
	}
	// Contents are shared: changes are never made in place.
	out := &inode{data: slices.Clip(n.data), sure: n.sure, pending: slices.Clone(n.pending), lost: n.lost}
	c[n] = out
	if n.isDir() {
		out.names, out.sureNames = c.names(n.names), c.names(n.sureNames)
		for _, edits := range n.edits {
			var copied []edit
			for _, e := range edits {
				copied = append(copied, edit{e.name, c.clone(e.node)})
			}
			out.edits = append(out.edits, copied)
		}
	}
	return out
}

func (c cloner) names(m map[string]*inode) map[string]*inode {
	out := make(map[string]*inode, len(m))
	for name, n := range m {
		out[name] = c.clone(n)
	}
	return out
}

// Images yields every disk that a power cut now may leave, as a file system whose
// contents are certain. Some may be equal. If several files are uncertain, one at a time
// is torn in all ways while the others are old or new.
func (f *FS) Images() iter.Seq[*FS] {
	frozen := f.Clone()
	return func(yield func(*FS) bool) {
		var c choices
		unsure := frozen.unsure()
		contents := map[*inode][][]byte{}
		for {
			b := builder{choose: c.choose, few: frozen.few, files: map[*inode]*inode{}, contents: contents}
			if len(unsure) > 1 {
				b.focus = unsure[b.choose(len(unsure))]
			}
			image := &FS{root: b.dir(frozen.root), locks: map[string]bool{}, split: frozen.split, few: frozen.few}
			if !yield(image) || !c.next() {
				return
			}
		}
	}
}

func (f *FS) unsure() []*inode {
	var out []*inode
	seen := map[*inode]bool{}
	var walk func(n *inode)
	walk = func(n *inode) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		if !n.isDir() {
			if len(n.pending) > 0 {
				out = append(out, n)
			}
			return
		}
		for _, names := range []map[string]*inode{n.sureNames, n.names} {
			for _, name := range slices.Sorted(maps.Keys(names)) {
				walk(names[name])
			}
		}
		for _, edits := range n.edits {
			for _, e := range edits {
				walk(e.node)
			}
		}
	}
	walk(f.root)
	return out
}

// choices enumerates the paths of a decision tree, one by one.
type choices struct {
	taken []int
	of    []int // number of alternatives
	depth int
}

func (c *choices) choose(n int) int {
	if c.depth == len(c.taken) {
		c.taken, c.of = append(c.taken, 0), append(c.of, n)
	}
	c.depth++
	return c.taken[c.depth-1]
}

// next advances to the next path. It returns false after the last one.
func (c *choices) next() bool {
	c.depth = 0
	for i := len(c.taken) - 1; i >= 0; i-- {
		if c.taken[i]+1 < c.of[i] {
			c.taken[i]++
			c.taken, c.of = c.taken[:i+1], c.of[:i+1]
			return true
		}
	}
	return false
}

type builder struct {
	choose   func(n int) int
	few      bool
	focus    *inode              // torn in all ways, or nil if at most one is uncertain
	files    map[*inode]*inode   // by original: a file with two names stays one file
	contents map[*inode][][]byte // possible contents by file; shared by all images
}

func (b *builder) dir(n *inode) *inode {
	names := maps.Clone(n.sureNames)
	for _, edits := range n.edits {
		if b.choose(2) == 0 {
			continue
		}
		for _, e := range edits {
			if e.node == nil {
				delete(names, e.name)
			} else {
				names[e.name] = e.node
			}
		}
	}
	out := newDir()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		child, done := b.files[names[name]]
		switch {
		case done:
		case names[name].isDir():
			child = b.dir(names[name])
		default:
			child = b.file(names[name])
		}
		b.files[names[name]] = child
		out.names[name], out.sureNames[name] = child, child
	}
	return out
}

func (b *builder) file(n *inode) *inode {
	contents, known := b.contents[n]
	if !known {
		contents = n.contents(b.few)
		b.contents[n] = contents
	}
	if b.focus != nil && b.focus != n {
		contents = [][]byte{contents[0], contents[len(contents)-1]}
	}
	data := contents[b.choose(len(contents))]
	return &inode{data: data, sure: data}
}

// contents returns a file's possible contents on disk, from the certain to the visible
// version.
func (n *inode) contents(few bool) [][]byte {
	if len(n.pending) == 0 {
		return [][]byte{n.sure}
	}
	var out [][]byte
	seen := map[string]bool{string(n.data): true}
	tearPoints := tearPoints
	if few {
		tearPoints = func(n int) []int { return []int{0, n / 2, n} }
	}
	add := func(b []byte) {
		if !seen[string(b)] {
			seen[string(b)] = true
			out = append(out, b)
		}
	}

	// Any prefix of the changes, with the last one torn.
	now := n.sure
	for _, c := range n.pending {
		for _, j := range tearPoints(len(c.bytes)) {
			if j > 0 {
				add(change{c.off, c.bytes[:j]}.on(now))
			} else {
				add(now)
			}
		}
		now = c.on(now)
		add(now)
	}

	// All but one change.
	for skip := range n.pending {
		now := n.sure
		for i, c := range n.pending {
			if i != skip {
				now = c.on(now)
			}
		}
		add(now)
	}

	// The full length, with front or back still old.
	for _, j := range tearPoints(len(now)) {
		front, back := make([]byte, len(now)), make([]byte, len(now))
		copy(front, n.sure)
		copy(back, n.sure)
		copy(front[:j], now[:j])
		copy(back[j:], now[j:])
		add(front)
		add(back)
	}
	return append(out, n.data)
}

const allTears = 512 // in bytes; up to this length every byte is a tear point

// tearPoints returns where n bytes may be torn: everywhere, or for long contents both
// ends and some positions between.
func tearPoints(n int) []int {
	step := 1
	if n > allTears {
		step = n/64 + 1
	}
	var out []int
	for j := 0; j < n; j += step {
		out = append(out, j)
	}
	if n > allTears {
		out = append(out, n-1)
	}
	return append(out, n)
}
