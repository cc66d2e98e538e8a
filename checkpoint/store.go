package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

// Store keeps the snapshots of a pipeline. Package checkpointtest has a store in memory
// for tests, and checks your own store against these rules. [Snapshot.WriteTo] writes a
// snapshot as bytes and [ReadSnapshot] reads them.
//
// The methods are safe for concurrent use. After Close they return [ErrClosed]. A store
// or an [Output] with a method LogTo(*slog.Logger) gets the coordinator's logger.
type Store interface {
	// Save stores s durably and as a whole. Once it has returned nil, s survives a crash
	// of the process, and a power cut if the store promises that. At any time the store
	// holds either the snapshots it held before, or those and all of s. When s is
	// durable, Save may remove the oldest snapshots, but never the newest undamaged ones.
	// If it cannot remove an old snapshot, Save still succeeds.
	//
	// s.ID must be higher than every number that the store has seen, in former runs and
	// of damaged snapshots, too; otherwise Save returns a *NumberError. If
	// [Snapshot.Validate] returns an error, Save returns it. In both cases the
	// snapshot is not stored.
	//
	// The last Save can be repeated with the same snapshot. If it was stored, Save only
	// returns nil. If it was stored in part, or Save has returned an error, Save stores
	// it. Another snapshot with the same number is refused with a *NumberError if the
	// first may have been stored.
	//
	// Save returns soon after ctx has ended, with an error. After any other error,
	// earlier snapshots are unchanged, and s may have been stored even so. A restart can
	// resume from it.
	//
	// A store that several machines share belongs to a single run at a time. The methods
	// of a run that has lost it always return [ErrFenced].
	//
	// Save does not keep a reference to s and its states.
	Save(ctx context.Context, s *Snapshot) error

	// Load returns the snapshot with number id, which then belongs to the caller. The
	// error matches ErrNotFound if it does not exist, is a *CorruptError if it is damaged
	// (which must always be detected), and a *VersionError if its format is unknown;
	// other errors mean that it could not be read.
	Load(ctx context.Context, id uint64) (*Snapshot, error)

	// List returns the stored snapshots, including damaged ones, by ascending numbers. It
	// need not read their content.
	List(ctx context.Context) ([]Entry, error)

	// Close waits for a running Save and releases the store. A second Close is a no-op.
	Close() error
}

// Entry is a stored snapshot.
type Entry struct {
	ID   uint64
	Size int64 // in bytes
}

// Latest returns the newest undamaged snapshot of a store, and the damage of newer ones,
// newest first. Resuming from an older checkpoint repeats work that sinks have already
// published, so the caller should at least log it.
//
// The error matches [ErrNotFound] if the store is empty. If all snapshots are damaged, it
// joins the errors in skipped instead, so that no pipeline starts afresh because its
// state was lost. A snapshot that cannot be read for another reason (permissions, an
// unknown format, listed but missing) is an error.
func Latest(ctx context.Context, store Store) (s *Snapshot, skipped []*CorruptError, err error) {
	entries, err := store.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(entries) == 0 {
		return nil, nil, fmt.Errorf("%w: the store is empty", ErrNotFound)
	}
	for _, entry := range slices.Backward(entries) {
		s, err := store.Load(ctx, entry.ID)
		if err == nil {
			return s, skipped, nil
		}
		damage, isDamage := errors.AsType[*CorruptError](err)
		if errors.Is(err, ErrNotFound) {
			return nil, skipped, fmt.Errorf("checkpoint: checkpoint %d is listed, but: %v", entry.ID, err) //nolint:errorlint // must not match ErrNotFound, which means an empty store
		}
		if !isDamage {
			return nil, skipped, err
		}
		skipped = append(skipped, damage)
	}
	errs := make([]error, len(skipped))
	for i, e := range skipped {
		errs[i] = e
	}
	return nil, skipped, fmt.Errorf("checkpoint: all of the %d stored checkpoints are damaged: %w",
		len(skipped), errors.Join(errs...))
}

type logsTo interface{ LogTo(l *slog.Logger) }

func giveLogger(part any, l *slog.Logger) {
	if p, ok := part.(logsTo); ok {
		p.LogTo(l)
	}
}
