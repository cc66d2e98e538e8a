package deadfile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/testing/crashfs"
)

// D1, D5: whenever the power is cut or the process killed, every dead letter for which Append has returned nil is there, until
// the message that a replay has made of it was acknowledged; and none of them is called damaged.
func TestCrashes(t *testing.T) {
	for _, kills := range []bool{false, true} {
		t.Run(map[bool]string{false: "power", true: "kill"}[kills], func(t *testing.T) {
			fsys := crashfs.New()
			fsys.FewTears()
			var mu sync.Mutex           // guards what follows: a replay records on a goroutine of its own
			stored := map[string]bool{} // promised
			acked := map[string]bool{}  // may be gone
			seen := map[string]bool{}
			look := func(disk *crashfs.FS) {
				key := fmt.Sprint(disk.Files(), len(stored))
				if seen[key] {
					return
				}
				seen[key] = true
				left := maps.Clone(stored)
				f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(disk))
				if !assert.NoError(t, err, key) {
					return
				}
				for range 2 { // what was being replayed, and what has died meanwhile
					for _, v := range replayed(t, f) {
						delete(left, v)
					}
				}
				assert.NoError(t, f.Close())
				for v := range acked {
					delete(left, v)
				}
				assert.Empty(t, slices.Collect(maps.Keys(left)), "lost, on %v", key)
				assert.NotContains(t, disk.Files(), "/dead/damaged.jsonl", key)
			}
			note := func(of map[string]bool, value string) {
				mu.Lock()
				defer mu.Unlock()
				of[value] = true
			}
			fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
				if !c.Changes() {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if !kills {
					for disk := range fsys.Images() {
						look(disk)
					}
					return nil
				}
				look(fsys.Clone())
				next := fsys.Clone() // the process is started again, and then the power is cut
				var cuts sync.Mutex
				next.OnCall(func(c crashfs.Call) *crashfs.Fault {
					if c.Changes() {
						cuts.Lock()
						defer cuts.Unlock()
						for disk := range next.Images() {
							look(disk)
						}
					}
					return nil
				})
				f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(next))
				if assert.NoError(t, err) {
					assert.NoError(t, f.Append(context.Background(), entry("after")))
					assert.NoError(t, f.Close())
				}
				return nil
			})
			n := 0
			put := func(f *File[string], count int) {
				entries := make([]Entry[string], count)
				for i := range entries {
					entries[i] = entry(strconv.Itoa(n))
					n++
				}
				require.NoError(t, f.Append(context.Background(), entries...))
				for _, e := range entries {
					note(stored, e.Value)
				}
			}
			for range 2 {
				f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
				require.NoError(t, err)
				put(f, 1)
				put(f, 2)
				r, err := f.replay()
				require.NoError(t, err)
				put(f, 1)
				ms, err := r.Receive(context.Background(), 2)
				require.NoError(t, err)
				note(acked, ms[0].Value)
				ms[0].Ack()
				require.NoError(t, r.Close(context.Background()))
				r, err = f.replay()
				require.NoError(t, err)
				for len(ms) > 0 {
					ms, err = r.Receive(context.Background(), 10)
					if err != nil {
						break
					}
					for _, m := range ms {
						note(acked, m.Value)
						m.Ack()
					}
				}
				require.NoError(t, r.Close(context.Background()))
				require.NoError(t, f.Close())
			}
			require.Greater(t, len(seen), 20, "disks")
		})
	}
}

// D1: the name of the file is durable, too, where its first write has failed, as on a full disk.
func TestPowerCutAfterAFirstWriteThatFailed(t *testing.T) {
	fsys := crashfs.New()
	full := true
	fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
		if full && c.Op == "write" && c.Name == "/dead/"+deadName {
			full = false
			return &crashfs.Fault{Err: syscall.ENOSPC}
		}
		return nil
	})
	f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
	require.NoError(t, err)
	require.ErrorIs(t, f.Append(t.Context(), entry("a")), syscall.ENOSPC)
	require.NoError(t, f.Append(t.Context(), entry("b")))
	for disk := range fsys.Images() {
		again, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(disk))
		require.NoError(t, err)
		require.Equal(t, []string{"b"}, replayed(t, again))
		require.NoError(t, again.Close())
	}
	require.NoError(t, f.Close())
}
