package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/procs"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/progress"
)

const maxWorkerLife = time.Hour

// supervisor starts the workers of a partitioned run and kills some. The store runs in
// this process.
type supervisor struct {
	*job
	processes *procs.Supervisor
	started   int

	mu      sync.Mutex
	kills   int
	moves   int                   // of partitions to another worker
	parts   map[string]partReport // of the newest assignment, by partition
	owners  map[string]string
	earlier partReport // calls and retries of earlier assignments
	trouble string
}

// runPartitioned runs the workers until all partitions are done, and joins the outputs.
func (j *job) runPartitioned() (text string, status int, err error) {
	begun := time.Now()
	in, err := durable.OpenInput(j.cfg.In, 0, 1, j.book)
	if err != nil {
		return "", exitFailed, err
	}
	j.input, j.total = in.Name(), in.Total()
	if err := j.prepare(in); err != nil {
		return "", exitFailed, err
	}
	// Two jobs at once would wait for each other's partitions.
	only, err := files.OpenDir(filepath.Join(j.cfg.Checkpoint, "job"))
	if err != nil {
		return "", exitFailed, err
	}
	defer func() { err = errors.Join(err, only.Close()) }()
	if err := j.startStore(); err != nil {
		return "", exitFailed, err
	}
	defer j.closeStore()
	s := &supervisor{job: j, processes: procs.NewSupervisor(maxWorkerLife), parts: map[string]partReport{}, owners: map[string]string{}}
	stopProgress := j.startProgress(s.sample)
	err = s.work()
	s.processes.Stop()
	stopProgress()
	if err != nil {
		return "", exitFailed, err
	}
	summary, err := s.join()
	if err != nil {
		return "", exitFailed, err
	}
	summary.Elapsed = time.Since(begun)
	if len(summary.Problems) > 0 {
		status = exitFailed
	}
	return summary.String(), status, nil
}

func (j *job) prepare(in *durable.Input) error {
	_, err := durable.NewOutput(j.cfg.Out, j.cfg.Format, j.cfg.Ordered, in)
	if err != nil {
		return err
	}
	_, err = os.Stat(j.cfg.Checkpoint)
	if errors.Is(err, os.ErrNotExist) {
		err = durable.RefuseContent(j.cfg.Out)
		if err != nil {
			return err
		}
	}
	if err := os.MkdirAll(j.cfg.Checkpoint, 0o750); err != nil {
		return err
	}
	db, err := openLocks(j.cfg)
	if err != nil {
		return err
	}
	return errors.Join(sqlite.New(db).Migrate(context.Background()), db.Close())
}

// work starts the workers, and kills some, until all partitions are done.
func (s *supervisor) work() error {
	for range s.cfg.Workers {
		if err := s.start(); err != nil {
			return err
		}
	}
	random := rand.New(rand.NewPCG(s.cfg.Seed, 31))
	for {
		select {
		case <-s.interrupts:
			return fmt.Errorf("%w\nstart again with the same flags to go on from the last checkpoints in %s", errInterrupted, s.cfg.Checkpoint)
		case <-time.After(10 * time.Millisecond):
		}
		exits := s.processes.Exits()
		if len(exits) > 0 {
			return exits[0].Err
		}
		done, victim, err := s.look(random)
		if done || err != nil {
			return err
		}
		if victim == "" {
			continue
		}
		s.kill(victim)
		if err := s.start(); err != nil {
			return err
		}
	}
}

// look reports whether all partitions are done, or which worker to kill now.
func (s *supervisor) look(random *rand.Rand) (done bool, victim string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, written := s.cfg.Partitions, 0
	var victims []string
	for _, name := range partitionNames(s.cfg) { // sorted, so that the seed decides
		part := s.parts[name]
		written += part.Done
		if part.Error != "" {
			return false, "", fmt.Errorf("%s: %s", name, part.Error)
		}
		owner := s.owners[name]
		if part.Ended {
			left--
		} else if owner != "" {
			victims = append(victims, owner)
		}
	}
	// Spread the kills over the flights.
	if len(victims) > 0 && s.kills < s.cfg.Kills && written >= s.total*(s.kills+1)/(s.cfg.Kills+1) {
		victim = victims[random.IntN(len(victims))]
	}
	return left == 0, victim, nil
}

func (s *supervisor) start() error {
	s.started++
	name := "worker " + strconv.Itoa(s.started)
	settings := WorkerSettings{Config: s.cfg, Name: name, Store: s.cluster.MetaAddr()}
	return procs.Run(s.processes, name, settings, func(line []byte) {
		var r partReport
		if err := json.Unmarshal(line, &r); err == nil { // an error means a line that the kill cut short
			s.reported(name, r)
		}
	})
}

func (s *supervisor) kill(worker string) {
	s.processes.Kill(worker) // also reads its last reports
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills++
	s.trouble = worker + " killed"
	for name, owner := range s.owners {
		if owner == worker {
			delete(s.owners, name)
			part := s.parts[name]
			part.InFlight = 0
			s.parts[name] = part
		}
	}
}

// reported stores a report. Just after a partition has moved, two workers may report it;
// the later assignment counts.
func (s *supervisor) reported(worker string, r partReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, isKnown := s.parts[r.Name]
	if known.Ended || isKnown && r.Epoch < known.Epoch && r.Error == "" {
		return
	}
	if isKnown && r.Epoch > known.Epoch {
		s.moves++
		s.earlier.Calls += known.Calls
		s.earlier.Retries += known.Retries
	}
	s.parts[r.Name] = r
	s.owners[r.Name] = worker
}

func (s *supervisor) sample() progress.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := progress.State{Total: int64(s.total), Retries: s.earlier.Retries}
	if s.trouble != "" {
		state.LastError = errors.New(s.trouble)
	}
	for _, part := range s.parts {
		state.Done += int64(part.Done)
		state.Retries += part.Retries
		state.InFlight += part.InFlight
	}
	return state
}

// join proves each output against its part of the input, and writes them in order to
// -out. The workers have ended, so it needs no lock.
func (s *supervisor) join() (*cli.PartitionedSummary, error) {
	sum := &cli.PartitionedSummary{Config: s.cfg, Input: s.input, Calls: s.earlier.Calls, Retries: s.earlier.Retries, Kills: s.kills, Moves: s.moves}
	joined, err := os.Create(s.cfg.Out + ".joining")
	if err != nil {
		return nil, err
	}
	_, err = joined.Write(s.cfg.Format.Header())
	for _, name := range partitionNames(s.cfg) {
		if err == nil {
			err = s.joinOne(joined, sum, s.parts[name])
		}
	}
	if err == nil {
		err = joined.Sync()
	}
	err = errors.Join(err, joined.Close())
	if err != nil {
		return nil, err
	}
	missing := sum.Read - sum.Enriched - len(sum.GivenUp)
	if missing != 0 {
		sum.Problems = append(sum.Problems, fmt.Sprintf("%d flights did not come out", missing))
	}
	return sum, os.Rename(s.cfg.Out+".joining", s.cfg.Out)
}

func (s *supervisor) joinOne(joined io.Writer, sum *cli.PartitionedSummary, part partReport) error {
	book := ledger.New(s.cfg.Ordered, s.airports)
	in, out, err := openPartition(s.cfg, part.Name, book)
	for err == nil {
		_, err = in.Next() // records each flight in the book
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	book.Restore(part.Lost)
	proof, err := durable.Prove(in, out, s.airports)
	if err != nil {
		return err
	}
	sum.Read += proof.Read
	sum.Enriched += proof.Enriched
	sum.GivenUp = append(sum.GivenUp, part.Lost...)
	sum.Calls += part.Calls
	sum.Retries += part.Retries
	for _, problem := range slices.Concat(part.Problems, proof.Problems) {
		sum.Problems = append(sum.Problems, part.Name+": "+problem)
	}
	text, err := os.ReadFile(partitionFile(s.cfg, part.Name))
	if err != nil {
		return err
	}
	_, err = joined.Write(bytes.TrimPrefix(text, s.cfg.Format.Header()))
	return err
}
