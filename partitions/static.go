package partitions

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
)

// Static returns an assigner that assigns the named partitions to this worker once, with
// epoch 0. If two workers name the same partition, the worker that opens its store last
// has it, and the run of the other ends with [checkpoint.ErrFenced]; with [Dirs] the
// second worker waits. Stores of other assigners' epochs refuse epoch 0 with that error.
func Static(names ...string) Assigner { return static(names) }

type static []string

func (s static) Run(ctx context.Context, h Handler) error {
	for _, name := range s {
		if err := h.Assigned(ctx, name, 0); err != nil {
			return err
		}
	}
	return nil
}

// Dirs returns stores for workers on one machine: a directory within dir for each
// partition. The owner of a partition locks its directory; another worker waits until the
// owner has closed it or its process has ended. Epochs are not used.
func Dirs(dir string) Stores { return dirs(dir) }

type dirs string

func (d dirs) Open(_ context.Context, partition string, _ uint64) (checkpoint.Store, error) {
	name := url.PathEscape(partition)
	if name == "" || name == "." || name == ".." {
		return nil, fmt.Errorf("partitions: Dirs: the partition %q cannot name a directory", partition)
	}
	store, err := files.OpenDir(filepath.Join(string(d), name))
	if err != nil {
		return nil, err // a nil *files.DirStore is not a nil Store
	}
	return store, nil
}
