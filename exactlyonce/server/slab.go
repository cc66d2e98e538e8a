package server

// slab is the memory of slabSize records. It saves allocations, and objects for the
// garbage collector to follow.
type slab struct {
	used    int // records with a request
	records [slabSize]record
}

const slabSize = 28 // so that a slab has 4 kB

// slabs hands out records. A slab without requests is freed. A slow request keeps its
// slab, whose other records are used first (law X3).
type slabs struct {
	free  list[record, *record] // of slabs that have requests
	spare *slab                 // a slab without requests, or nil
}

func (s *slabs) needs() bool { return s.free.first == nil }

func (s *slabs) take() *record {
	if s.needs() {
		from := s.spare
		s.spare = nil
		if from == nil {
			from = &slab{}
		}
		for i := range from.records {
			from.records[i].slab = from
			s.free.pushBack(&from.records[i])
		}
	}
	rec := s.free.first
	s.free.remove(rec)
	rec.slab.used++
	return rec
}

// give takes back a record, and reports whether it was the last of its slab.
func (s *slabs) give(rec *record) (last bool) {
	from := rec.slab
	*rec = record{slab: from}
	s.free.pushBack(rec)
	if from.used--; from.used > 0 {
		return false
	}
	for i := range from.records {
		s.free.remove(&from.records[i])
	}
	s.spare = from
	return true
}
