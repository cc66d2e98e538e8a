package server

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestSizesOfRecords(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("sizes are those of 64 bits")
	}
	t.Logf("record %d, slab %d, page %d", unsafe.Sizeof(record{}), unsafe.Sizeof(slab{}), unsafe.Sizeof(page{}))
	require.LessOrEqual(t, unsafe.Sizeof(slab{}), uintptr(slabCost))
	require.EqualValues(t, 256, unsafe.Sizeof(page{}))
}

// X3: a slab is charged while one of its records is used, and its other records are used
// first.
func TestSlabs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var s slabs
	var used []*record
	charged := 0 // slabs
	for i := range 20_000 {
		if grows := i/2000%2 == 0; len(used) == 0 || grows == (rng.IntN(3) > 0) {
			if s.needs() {
				charged++
				require.Equal(t, (charged-1)*slabSize, len(used), "none is free")
			}
			rec := s.take()
			require.Equal(t, record{slab: rec.slab}, *rec)
			rec.seq = int64(i) + 1
			used = append(used, rec)
		} else {
			k := rng.IntN(len(used))
			rec := used[k]
			used[k] = used[len(used)-1]
			used = used[:len(used)-1]
			require.NotZero(t, rec.seq, "given out twice")
			if s.give(rec) {
				charged--
			}
		}
		inUse := map[*slab]int{}
		if i%500 == 0 {
			for _, rec := range used {
				inUse[rec.slab]++
			}
			require.Len(t, inUse, charged)
			for from, n := range inUse {
				require.Equal(t, n, from.used)
			}
		}
	}
	for _, rec := range used {
		if s.give(rec) {
			charged--
		}
	}
	require.Zero(t, charged)
	require.True(t, s.needs())
	kept := s.spare
	require.Same(t, kept, s.take().slab, "the last one is kept")
	require.Nil(t, s.spare)
}
