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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/procs"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/progress"
)

// maxWorkerLife bounds the life of a worker that its supervisor does not end.
const maxWorkerLife = time.Hour

// partitionedJob starts the workers of -partitions and kills some of them. The store runs
// in this process.
type partitionedJob struct {
	*job

	workers *procs.Supervisor
	started int

	mu         sync.Mutex
	kills      int
	handedOver int // partitions that moved to another worker
	parts      map[string]partReport
	owners     map[string]string
	reports    map[string]workerReport // by running worker
	before     workerReport            // totals of ended workers
	trouble    string
}

// runPartitioned runs the job with -partitions.
func (j *job) runPartitioned(stdout io.Writer, fail func(int, error) int) int {
	p := &partitionedJob{
		job: j, workers: procs.NewSupervisor(maxWorkerLife), parts: map[string]partReport{}, owners: map[string]string{},
		reports: map[string]workerReport{},
	}
	begun := time.Now()
	proof, err := p.run()
	switch {
	case errors.Is(err, errInterrupted):
		return fail(exitInterrupted, fmt.Errorf("interrupted\nstart again with the same flags to go on from the last checkpoints in %s", j.cfg.Checkpoint))
	case err != nil:
		return fail(exitFailed, err)
	}
	if !p.summary(stdout, proof, time.Since(begun)) {
		return exitFailed
	}
	return exitOK
}

// run runs the workers until all partitions are done, and joins the outputs.
func (p *partitionedJob) run() (_ *durable.Proof, err error) {
	ctx := context.Background()
	p.airports, err = readAirports()
	if err != nil {
		return nil, err
	}
	p.job.parts = &Parts{Config: p.cfg}
	in, err := durable.OpenInput(p.cfg.In, ledger.New(p.cfg.Ordered, p.airports))
	if err != nil {
		return nil, err
	}
	p.input, p.total = in.Name(), in.Total()
	if err := errors.Join(p.prepare(ctx, in), in.Close()); err != nil {
		return nil, err
	}
	// Two jobs at once would wait for each other's partitions.
	only, err := files.OpenDir(filepath.Join(p.cfg.Checkpoint, "job"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, only.Close()) }()
	if err := p.startStore(); err != nil {
		return nil, err
	}
	defer p.closeStore()
	stopProgress := p.startProgress(p.sample)
	err = p.work()
	p.stop()
	stopProgress()
	if err != nil {
		return nil, err
	}
	return p.join()
}

// prepare creates the directory and the lease database.
func (p *partitionedJob) prepare(ctx context.Context, in *durable.Input) error {
	if _, err := durable.NewOutput(p.cfg.Out, p.cfg.Format, p.cfg.Ordered, in); err != nil {
		return err
	}
	_, err := os.Stat(p.cfg.Checkpoint)
	if info, outErr := os.Stat(p.cfg.Out); errors.Is(err, os.ErrNotExist) && outErr == nil && info.Size() > 0 {
		return fmt.Errorf("-out %s is not empty, and there is no checkpoint to go on from: remove it to start afresh", p.cfg.Out)
	}
	if err := os.MkdirAll(p.cfg.Checkpoint, 0o750); err != nil {
		return err
	}
	db, err := openLocks(ctx, p.cfg)
	if err != nil {
		return err
	}
	return errors.Join(sqlite.New(db).Migrate(ctx), db.Close())
}

// work starts the workers, and kills some of them, until all partitions are done.
func (p *partitionedJob) work() error {
	for range p.cfg.Workers {
		if err := p.start(); err != nil {
			return err
		}
	}
	random := rand.New(rand.NewPCG(p.cfg.Seed, 31))
	for {
		select {
		case <-p.interrupts:
			return errInterrupted
		case <-time.After(10 * time.Millisecond):
		}
		done, err := p.look()
		if done || err != nil {
			return err
		}
		if p.isDue() {
			if err := p.kill(random); err != nil {
				return err
			}
		}
	}
}

// look reports whether all partitions are done.
func (p *partitionedJob) look() (done bool, err error) {
	exits := p.workers.Exits()
	if len(exits) > 0 {
		return false, exits[0].Err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	count := 0
	for name, part := range p.parts {
		if part.Error != "" {
			return false, fmt.Errorf("%s: %s", name, part.Error)
		}
		if part.Ended {
			count++
		}
	}
	return count == p.cfg.Partitions, nil
}

// isDue reports whether it is time to kill a worker. The kills are spread over the
// flights.
func (p *partitionedJob) isDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kills < p.cfg.Kills && p.ended() >= p.total*(p.kills+1)/(p.cfg.Kills+1)
}

// kill kills a worker that has unfinished partitions, and starts another one.
func (p *partitionedJob) kill(random *rand.Rand) error {
	p.mu.Lock()
	var victims []string
	for _, name := range partitionNames(p.cfg) { // sorted, so that the seed decides
		if owner := p.owners[name]; owner != "" && !p.parts[name].Ended {
			victims = append(victims, owner)
		}
	}
	if len(victims) == 0 {
		p.mu.Unlock()
		return nil
	}
	victim := victims[random.IntN(len(victims))]
	p.mu.Unlock()
	p.workers.Kill(victim) // also reads the worker's last report
	p.mu.Lock()
	p.kills++
	p.trouble = victim + " killed"
	p.workerEnded(victim)
	p.mu.Unlock()
	return p.start()
}

// workerEnded records the end of a worker. The caller holds mu.
func (p *partitionedJob) workerEnded(worker string) {
	r := p.reports[worker]
	delete(p.reports, worker)
	p.before.Calls += r.Calls
	p.before.Retries += r.Retries
	for name, owner := range p.owners {
		if owner == worker {
			delete(p.owners, name)
		}
	}
}

func (p *partitionedJob) start() error {
	p.started++
	name := "worker " + strconv.Itoa(p.started)
	settings := WorkerSettings{Config: p.cfg, Name: name, Store: p.cluster.MetaAddr()}
	return procs.Run(p.workers, name, settings, func(line []byte) {
		var r workerReport
		if err := json.Unmarshal(line, &r); err == nil { // an error means a last line that the kill cut short
			p.reported(name, r)
		}
	})
}

// reported stores a report. Just after a partition has moved, two workers may report it;
// the report with the later epoch counts.
func (p *partitionedJob) reported(worker string, r workerReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports[worker] = r
	for name, part := range r.Parts {
		known, ok := p.parts[name]
		if ok && part.Epoch < known.Epoch && part.Error == "" {
			continue
		}
		if ok && part.Epoch > known.Epoch && !known.Ended {
			p.handedOver++
		}
		if !known.Ended {
			p.parts[name] = part
		}
		p.owners[name] = worker
	}
}

// stop ends all workers.
func (p *partitionedJob) stop() {
	p.workers.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.reports {
		p.workerEnded(name)
	}
}

// ended returns the number of finished flights. The caller holds mu.
func (p *partitionedJob) ended() (n int) {
	for _, part := range p.parts {
		n += part.Done
	}
	return n
}

func (p *partitionedJob) sample() progress.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := progress.State{Done: int64(p.ended()), Total: int64(p.total), Retries: p.before.Retries}
	if p.trouble != "" {
		s.LastError = errors.New(p.trouble)
	}
	for _, r := range p.reports {
		s.Retries += r.Retries
		s.InFlight += r.InFlight
	}
	return s
}

// join proves each output against its part of the input, and writes them in order to
// -out.
func (p *partitionedJob) join() (*durable.Proof, error) {
	all := &durable.Proof{}
	joined, err := os.Create(p.cfg.Out + ".joining")
	if err != nil {
		return nil, err
	}
	_, err = joined.Write(p.cfg.Format.Header())
	for _, name := range partitionNames(p.cfg) {
		if err != nil {
			break
		}
		err = p.joinOne(joined, all, name)
	}
	if err == nil {
		err = joined.Sync()
	}
	if err = errors.Join(err, joined.Close()); err != nil {
		return nil, err
	}
	return all, os.Rename(p.cfg.Out+".joining", p.cfg.Out)
}

func (p *partitionedJob) joinOne(joined io.Writer, all *durable.Proof, name string) error {
	book := ledger.New(p.cfg.Ordered, p.airports)
	in, out, err := openPartition(p.cfg, name, book)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	for err == nil {
		_, err = in.Next() // records each flight in the book
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	p.mu.Lock()
	part := p.parts[name]
	p.mu.Unlock()
	book.Restore(part.Lost)
	proof, err := durable.Prove(in, out, p.airports)
	if err != nil {
		return err
	}
	all.Read += proof.Read
	all.Enriched += proof.Enriched
	all.Missing += proof.Missing
	for _, problem := range append(part.Problem, proof.Problems...) {
		all.Problems = append(all.Problems, name+": "+problem)
	}
	text, err := os.ReadFile(partitionFile(p.cfg, name))
	if err != nil {
		return err
	}
	_, err = joined.Write(bytes.TrimPrefix(text, p.cfg.Format.Header()))
	return err
}

// summary prints the result of the run, and reports whether it is correct.
func (p *partitionedJob) summary(w io.Writer, proof *durable.Proof, elapsed time.Duration) bool {
	var givenUp []ledger.Lost
	for _, name := range partitionNames(p.cfg) {
		givenUp = append(givenUp, p.parts[name].Lost...)
	}
	faults := "no faults"
	if p.cfg.Faults {
		faults = fmt.Sprintf("faults of seed %d", p.cfg.Seed)
	}
	fmt.Fprintf(w, `
%s: %d partitions, %d workers, %s

  elements in           %s
  enriched              %s
  given up              %s

  calls made            %s, of them retries %s
  workers killed        %s
  partitions moved      %s times, to go on elsewhere from their last checkpoints
  time                  %.1fs

`, p.input, p.cfg.Partitions, p.cfg.Workers, faults, show.Count(proof.Read), show.Count(proof.Enriched), show.Count(len(givenUp)),
		show.Count(p.before.Calls), show.Count(p.before.Retries), show.Count(p.kills), show.Count(p.handedOver), elapsed.Seconds())
	for _, l := range givenUp {
		fmt.Fprintf(w, "  given up: airport %q, %s (line %d)\n", l.Airport, l.Why, l.Line)
	}
	if missing := proof.Read - proof.Enriched - len(givenUp); missing != 0 {
		proof.Problems = append(proof.Problems, fmt.Sprintf("%d flights did not come out", missing))
	}
	if len(proof.Problems) > 0 {
		fmt.Fprintf(w, "FAILED: the books do not balance:\n  %s\n", strings.Join(proof.Problems, "\n  "))
		return false
	}
	order := ""
	if p.cfg.Ordered {
		order = ", in input order"
	}
	fmt.Fprintf(w, "proven: %s flights are in the output file exactly once%s, or given up: %s enriched, %s given up.\n",
		show.Count(proof.Read), order, show.Count(proof.Enriched), show.Count(len(givenUp)))
	return true
}
