package docs_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/partitions"
	"github.com/weirflow/weir/predicates"
)

// The times of a plant: how often it is scraped, when its fault begins, and how long the
// fault lasts. Before the fault the alerts see the plant without faults.
const (
	scrapeEach  = 15 * time.Second
	faultBegins = 45 * time.Minute
	faultLasts  = 35 * time.Minute
)

// plant is a worker with a backend and checkpoints, whose metrics are scraped.
type plant struct {
	fault    atomic.Value // a string; "" if there is no fault
	registry *prometheus.Registry
	series   map[string][]string // by name and labels: a value for each scrape
	buckets  bool                // the buckets of histograms are scraped, too
	scrapes  int
	epoch    time.Time
}

func (p *plant) has(fault string) bool { return p.fault.Load() == fault }

// parcel is an element. Nine of ten may be sent twice.
type parcel int

func (n parcel) Idempotent() bool { return n%10 != 1 }

var (
	errDown   = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	errPoison = predicates.WithReason(fmt.Errorf("no such account"), predicates.NewRejection("NO_ACCOUNT"))
)

// call is the function of the operator.
func (p *plant) call(ctx context.Context, n parcel) (parcel, error) {
	took := 50 * time.Millisecond
	if p.has("slow") {
		took = 6 * time.Second
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	switch {
	case p.has("down"):
		return 0, errDown
	case p.has("poison") && n%10 == 0:
		return 0, errPoison
	case p.has("layer") && n%5 == 0, p.has("doubt") && n%10 == 1:
		return 0, fmt.Errorf("the answer to %d makes no sense", n)
	}
	return n, nil
}

// plantSink takes the results.
type plantSink struct{ *plant }

func (s plantSink) PutAll(ctx context.Context, ms []message.Message[parcel]) error {
	switch {
	case s.has("stuck"):
		<-ctx.Done()
		return context.Cause(ctx)
	case s.has("leases"):
		select {
		case <-time.After(40 * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// plantEngine keeps the queue, on a disk that may fail. It may be too slow to extend
// leases.
type plantEngine struct {
	*plant
	*memory.Engine
}

func (e plantEngine) Take(ctx context.Context, queue string, n int, lease time.Duration) ([]store.Leased, error) {
	if e.has("disk") {
		return nil, fmt.Errorf("write orders.db-wal: %w", syscall.ENOSPC)
	}
	return e.Engine.Take(ctx, queue, n, lease)
}

func (e plantEngine) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	if e.has("disk") {
		return store.Counts{}, fmt.Errorf("read orders.db: %w", syscall.EIO)
	}
	return e.Engine.Count(ctx, queue, f)
}

func (e plantEngine) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if e.has("leases") {
		return context.DeadlineExceeded
	}
	return e.Engine.Extend(ctx, d, leases...)
}

// plantClock is the clock of the engine. It may jump.
type plantClock struct {
	*plant
	clock.Clock
}

func (c plantClock) Now() time.Time {
	if c.has("clock") {
		return c.Clock.Now().Add(10 * time.Minute)
	}
	return c.Clock.Now()
}

// plantLocks are the locks of the partitions. The lock of partition b may fail.
type plantLocks struct {
	*plant
	lock.Locks
}

var errLock = errors.New("the row is damaged")

func (l plantLocks) Acquire(ctx context.Context, name, owner string, d time.Duration) (lock.Grant, error) {
	if l.has("partition") && name == "flights/partition/b" {
		return lock.Grant{}, errLock
	}
	return l.Locks.Acquire(ctx, name, owner, d)
}

func (l plantLocks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if l.has("partition") && g.Name == "flights/partition/b" {
		return errLock
	}
	return l.Locks.Extend(ctx, g, d)
}

// Open returns the store of a partition.
func (*plant) Open(context.Context, string, uint64) (checkpoint.Store, error) {
	return checkpointtest.NewMemoryStore(), nil
}

// partitions runs the pipelines of three partitions, without checkpoints of their own.
func (p *plant) partitions(ctx context.Context, locks lock.Locks, monitor *partitions.Monitor) error {
	quiet := slog.New(slog.DiscardHandler)
	return partitions.Run(ctx, partitions.Config{
		Assigner: &partitions.Leases{Locks: plantLocks{p, locks}, Group: "flights", Partitions: []string{"a", "b", "c"}, Logger: quiet},
		Stores:   p, Monitor: monitor, Logger: quiet,
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(time.Hour), checkpoint.WithLogger(quiet)},
		Pipeline: func(ctx context.Context, part partitions.Partition) error {
			if err := part.Coordinator.Start(); err != nil {
				return err
			}
			return part.Coordinator.Wait()
		},
	})
}

// plantStore keeps checkpoints, unless it hangs.
type plantStore struct {
	*plant
	checkpoint.Store
}

func (s plantStore) Save(ctx context.Context, snapshot *checkpoint.Snapshot) error {
	if s.has("checkpoint") {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.Store.Save(ctx, snapshot)
}

// scrape notes what the registry has.
func (p *plant) scrape(t *testing.T) {
	t.Helper()
	families, err := p.registry.Gather()
	require.NoError(t, err)
	note := func(name string, v float64, labels []string) {
		slices.Sort(labels)
		key := name + "{" + strings.Join(labels, ",") + "}"
		for len(p.series[key]) < p.scrapes {
			p.series[key] = append(p.series[key], "_")
		}
		if strings.HasSuffix(name, "_timestamp_seconds") && v > 0 { // promtool begins at 0
			v -= float64(p.epoch.Unix())
		}
		p.series[key] = append(p.series[key], strconv.FormatFloat(v, 'f', -1, 64))
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			switch h := m.GetHistogram(); {
			case h != nil:
				note(f.GetName()+"_sum", h.GetSampleSum(), labels)
				note(f.GetName()+"_count", float64(h.GetSampleCount()), labels)
				for _, b := range h.GetBucket() {
					if p.buckets {
						note(f.GetName()+"_bucket", float64(b.GetCumulativeCount()), append(slices.Clone(labels), fmt.Sprintf("le=\"%v\"", b.GetUpperBound())))
					}
				}
			case m.GetGauge() != nil:
				note(f.GetName(), m.GetGauge().GetValue(), labels)
			default:
				note(f.GetName(), m.GetCounter().GetValue(), labels)
			}
		}
	}
	p.scrapes++
	for key := range p.series { // series that this scrape does not have
		if len(p.series[key]) < p.scrapes {
			p.series[key] = append(p.series[key], "_")
		}
	}
}

// run lets the plant work, with a fault from faultBegins on.
func (p *plant) run(t *testing.T, fault string, each, lasts time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		p.fault.Store("")
		p.series, p.registry, p.epoch = map[string][]string{}, prometheus.NewRegistry(), time.Now()
		engine := plantEngine{p, memory.Open(memory.WithClock(plantClock{p, clock.New()}))}
		bank, monitor, metrics := backend.New("bank", backend.WithLogger(quiet)), &delivery.Monitor{}, weirprom.New("payments")
		shares := &partitions.Monitor{}
		orders := delivery.NewQueue[parcel](engine, "orders", delivery.RetryAfter(time.Minute, 2*time.Hour), delivery.WithLogger(quiet))
		op := asyncop.OrderedWait(asyncop.Blocking(p.call), 10*time.Second, 20, asyncop.WithBackend(bank), asyncop.WithObserver(metrics),
			asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
		coordinator, err := checkpoint.NewCoordinator(plantStore{p, checkpointtest.NewMemoryStore()},
			checkpoint.WithInterval(time.Minute), checkpoint.WithTimeout(5*time.Minute), checkpoint.WithLogger(quiet))
		require.NoError(t, err)
		require.NoError(t, coordinator.Start())
		p.registry.MustRegister(metrics, weirprom.NewBackends(bank), weirprom.NewWorker("payments", monitor),
			weirprom.NewCheckpoints("flights", coordinator), weirprom.NewPartitions("flights", shares),
			weirprom.NewQueues(engine, "orders", "orders-retry-1", "orders-retry-2", "orders-dead"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = delivery.Run(ctx, orders, op, plantSink{p}, delivery.WithMonitor(monitor), delivery.WithLogger(quiet))
		}()
		shared := make(chan struct{})
		go func() {
			defer close(shared)
			_ = p.partitions(ctx, engine.Locks(), shares)
		}()
		fed := make(chan struct{})
		go func() {
			defer close(fed)
			for n := parcel(0); ctx.Err() == nil; n++ {
				_ = orders.Put(ctx, n)
				time.Sleep(each)
			}
		}()
		for at := time.Duration(0); at < lasts; at += scrapeEach {
			if fault != "" && at >= faultBegins {
				p.fault.Store(fault)
			}
			p.scrape(t)
			time.Sleep(scrapeEach)
		}
		p.fault.Store("")
		cancel()
		<-ended
		<-shared
		<-fed
		require.NoError(t, coordinator.Close())
		require.NoError(t, engine.Close())
	})
}

// promtool evaluates expressions on series, with the rules. The result of each expression
// must be samples of value 1 with the labels.
func promtool(t *testing.T, series map[string][]string, queries []query) {
	t.Helper()
	var b strings.Builder
	b.WriteString("    promql_expr_test:\n")
	for _, q := range queries {
		fmt.Fprintf(&b, "      - expr: '%s'\n        eval_time: %v\n        exp_samples:\n", q.expr, q.at)
		for _, labels := range q.labels {
			fmt.Fprintf(&b, "          - labels: '{%s}'\n            value: 1\n", labels)
		}
	}
	testRules(t, series, b.String())
}

// testRules lets promtool test the rules on series. The tests are YAML of promtool.
func testRules(t *testing.T, series map[string][]string, tests string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("WEIR_REQUIRE_PROMTOOL") != "" {
			t.Fatal(err)
		}
		t.Skip("promtool is not installed: apt-get install --no-install-recommends prometheus")
	}
	rules, err := filepath.Abs("../cmd/weir/generate/alerts.yml")
	require.NoError(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: %v\ntests:\n  - interval: %v\n    input_series:\n", rules, scrapeEach, scrapeEach)
	for _, key := range slices.Sorted(maps.Keys(series)) {
		fmt.Fprintf(&b, "      - series: '%s'\n        values: '%s'\n", key, strings.Join(series[key], " "))
	}
	b.WriteString(tests)
	file := filepath.Join(t.TempDir(), "test.yml")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	out, err := exec.CommandContext(t.Context(), tool, "test", "rules", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

type query struct {
	expr   string
	at     time.Duration
	labels []string // one for each sample
}

// fired returns a query for all alerts that have fired until at.
func fired(at time.Duration, alerts ...string) query {
	q := query{expr: `max by (alertname) (max_over_time(ALERTS{alertstate="firing"}[2d]))`, at: at}
	for _, alert := range slices.Sorted(slices.Values(alerts)) {
		q.labels = append(q.labels, fmt.Sprintf("alertname=%q", alert))
	}
	return q
}

// Each fault of a running worker raises its alert in time, and no other alerts except the
// alerts that this alert inhibits. A day without faults raises no alerts; without
// WEIR_LONG, three hours, which is longer than all windows of the rules. The series are
// scraped from runs with the fault, in virtual time.
func TestAlerts(t *testing.T) {
	const page, ticket = 2 * time.Minute, 30 * time.Minute
	calm := 3 * time.Hour
	if suite.Full() {
		calm = 24 * time.Hour
	}
	for _, c := range []struct {
		fault, alert string
		within       time.Duration
		inhibits     []string // that fire in the end as well
	}{
		{"down", "WeirBackendDown", page, []string{"WeirLayerGrows"}},
		{"stuck", "WeirWorkerStuck", page, nil},
		{"disk", "WeirEngineFails", page, nil},
		{"slow", "WeirCallsSlow", ticket, nil},
		{"poison", "WeirDeadLetters", ticket, nil},
		{"doubt", "WeirCallsInDoubt", ticket, nil},
		{"layer", "WeirLayerGrows", ticket, nil},
		{"checkpoint", "WeirCheckpointStuck", ticket, nil},
		{"partition", "WeirPartitionUnowned", page, nil},
		{"leases", "WeirLeasesLost", ticket, nil},
		{"clock", "WeirClockJumped", ticket, nil},
		{"", "", 0, nil},
	} {
		t.Run(cmp.Or(c.fault, "calm"), func(t *testing.T) {
			var p plant
			if c.fault == "" {
				p.run(t, "", 10*time.Second, calm)
				promtool(t, p.series, []query{fired(calm)})
				return
			}
			lasts := faultBegins + faultLasts
			p.run(t, c.fault, 2*time.Second, lasts)
			promtool(t, p.series, []query{
				fired(faultBegins), fired(faultBegins+c.within, c.alert), fired(lasts-time.Minute, append(slices.Clone(c.inhibits), c.alert)...),
			})
		})
	}
}

// Replicas of a program have the same names: a healthy replica does not hide the fault of
// another replica, and a queue that they share counts once. A backend that ramps is not
// an outage, however long the ramp takes on a quiet queue.
func TestAlertsOfReplicas(t *testing.T) {
	const an, hour = `backend="bank",instance="a",state=`, "x240"
	for _, c := range []struct {
		name   string
		series map[string]string
		fires  []string
	}{
		{"one is stuck, another is not", map[string]string{
			`weir_worker_messages_in_flight{worker="payments",instance="a"}`:                               "5" + hour,
			`weir_worker_messages_settled_total{worker="payments",instance="a",settlement="acknowledged"}`: "70" + hour,
			`weir_worker_messages_in_flight{worker="payments",instance="b"}`:                               "5" + hour,
			`weir_worker_messages_settled_total{worker="payments",instance="b",settlement="acknowledged"}`: "0+9" + hour,
		}, []string{"WeirWorkerStuck"}},
		{"another one starts", map[string]string{
			`weir_queue_messages{queue="orders-retry-1",cause="",instance="a"}`: "100" + hour,
			`weir_queue_messages{queue="orders-retry-1",cause="",instance="b"}`: "_x60 100" + hour,
		}, nil},
		{"a layer grows by one in a minute", map[string]string{
			`weir_queue_messages{queue="orders-retry-1",cause="",instance="a"}`: "0+0.25" + hour,
			`weir_queue_messages{queue="orders-retry-1",cause="",instance="b"}`: "0+0.25" + hour,
		}, nil},
		{"dead letters and a layer grow", map[string]string{
			`weir_queue_messages{queue="orders-dead",cause="permanent",instance="a"}`: "100+1" + hour,
			`weir_queue_messages{queue="orders-dead",cause="permanent",instance="b"}`: "100+1" + hour,
			`weir_queue_messages{queue="orders-retry-1",cause="",instance="a"}`:       "0+1" + hour,
			`weir_queue_messages{queue="orders-retry-1",cause="",instance="b"}`:       "0+1" + hour,
		}, []string{"WeirDeadLetters", "WeirLayerGrows"}},
		{"a backend ramps", map[string]string{
			"weir_backend_state{" + an + `"down"}`:    "0" + hour,
			"weir_backend_state{" + an + `"probing"}`: "0" + hour,
			"weir_backend_state{" + an + `"ramping"}`: "1" + hour,
		}, nil},
		{"a backend ramps, and goes down each time", map[string]string{
			"weir_backend_state{" + an + `"down"}`:                  strings.Repeat("1 0 ", 240),
			"weir_backend_state{" + an + `"probing"}`:               "0" + hour,
			"weir_backend_state{" + an + `"ramping"}`:               strings.Repeat("0 1 ", 240),
			`weir_backend_trips_total{backend="bank",instance="a"}`: strings.Repeat("0 ", 120) + "0+0.5" + hour,
			`weir_backend_trips_total{backend="bank",instance="b"}`: "0" + hour,
		}, []string{"WeirBackendDown"}},
		{"a backend is told to wait for most of the time", map[string]string{
			"weir_backend_state{" + an + `"down"}`:                  strings.Repeat("1 1 1 0 ", 60),
			"weir_backend_state{" + an + `"probing"}`:               "0" + hour,
			"weir_backend_state{" + an + `"ramping"}`:               strings.Repeat("0 0 0 1 ", 60),
			`weir_backend_trips_total{backend="bank",instance="a"}`: "0+0.25" + hour,
		}, []string{"WeirBackendDown"}},
		{"a backend goes down now and then", map[string]string{
			"weir_backend_state{" + an + `"down"}`:                  strings.Repeat("1 0 0 0 0 0 0 0 ", 30),
			`weir_backend_trips_total{backend="bank",instance="a"}`: "0+0.125" + hour,
			`weir_backend_trips_total{backend="bank",instance="b"}`: "0+0.125" + hour,
		}, nil},
		{"a backend probes", map[string]string{
			"weir_backend_state{" + an + `"down"}`:    "1 0 1 0" + hour,
			"weir_backend_state{" + an + `"probing"}`: "0 1 0 1" + hour,
			"weir_backend_state{" + an + `"ramping"}`: "0" + hour,
		}, []string{"WeirBackendDown"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			series := map[string][]string{}
			for key, values := range c.series {
				series[key] = []string{values}
			}
			promtool(t, series, []query{fired(time.Hour, c.fires...)})
		})
	}
}

// Dead letters raise an alert even if the alerts see them for the first time: when a worker
// starts, or with the first dead letter of a queue. A restart and another process do not
// raise it again. Dead letters in doubt have an alert of their own.
func TestAlerts_DeadLetters(t *testing.T) {
	const failed, inDoubt = "WeirDeadLetters", "WeirCallsInDoubt"
	type at struct {
		minute int
		fires  []string
	}
	for _, c := range []struct {
		name   string
		series map[string]string // by cause and instance
		expect []at
	}{
		{"that are there at the start", map[string]string{
			`cause="permanent",instance="a"`: "100x240",
			`cause="permanent",instance="b"`: "_x60 100x180",
		}, []at{{5, []string{failed}}, {13, nil}, {20, nil}, {59, nil}}},
		{"that appear at once", map[string]string{
			`cause="permanent",instance="a"`: "_x40 7x200",
		}, []at{{9, nil}, {13, []string{failed}}, {19, []string{failed}}, {24, nil}}},
		{"of a new cause", map[string]string{
			`cause="",instance="a"`:          "0x240",
			`cause="permanent",instance="a"`: "_x80 1x160",
		}, []at{{19, nil}, {23, []string{failed}}, {35, nil}}},
		{"during a restart", map[string]string{
			`cause="permanent",instance="a"`: "100x80 _x160",
			`cause="permanent",instance="b"`: "_x120 100x120",
		}, []at{{19, nil}, {31, nil}, {36, nil}, {41, nil}, {59, nil}}},
		{"after a purge", map[string]string{
			`cause="permanent",instance="a"`: "100x60 0x20 3x160",
		}, []at{{15, nil}, {29, []string{failed}}, {45, nil}}},
		{"in doubt", map[string]string{
			`cause="",instance="a"`:                 "0x240",
			`cause="unsafe to repeat",instance="a"`: "_x60 2x180",
		}, []at{{14, nil}, {18, []string{inDoubt}}, {30, nil}}},
		{"in doubt at the start", map[string]string{
			`cause="",instance="a"`:                 "_x60 0x180",
			`cause="unsafe to repeat",instance="a"`: "_x60 2x180",
		}, []at{{18, []string{inDoubt}}, {30, nil}}},
		{"in doubt after a purge", map[string]string{
			`cause="",instance="a"`:                 "0x240",
			`cause="unsafe to repeat",instance="a"`: "5x60 stale _x39 2x140",
		}, []at{{13, nil}, {29, []string{inDoubt}}, {34, []string{inDoubt}}, {45, nil}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			series := map[string][]string{}
			for labels, values := range c.series {
				series[`weir_queue_messages{queue="orders-dead",`+labels+"}"] = []string{values}
			}
			var queries []query
			for _, a := range c.expect {
				q := query{expr: `max by (alertname) (ALERTS{alertstate="firing"})`, at: time.Duration(a.minute) * time.Minute}
				for _, alert := range a.fires {
					q.labels = append(q.labels, fmt.Sprintf("alertname=%q", alert))
				}
				queries = append(queries, q)
			}
			promtool(t, series, queries)
		})
	}
}

// An alert about a queue links to the page of the queue, whatever its name.
func TestAlerts_Links(t *testing.T) {
	const name = `weir_queue_messages{queue="a & b-dead",cause="permanent",instance="a"}`
	testRules(t, map[string][]string{name: {"5x20"}}, `    alert_rule_test:
      - alertname: WeirDeadLetters
        eval_time: 2m
        exp_alerts:
          - exp_labels: {severity: ticket, queue: a & b-dead}
            exp_annotations:
              summary: Messages are given up, in a & b-dead.
              runbook_url: https://github.com/weirflow/weir/blob/main/docs/runbook.md#weirdeadletters
              console_url: https://console.example/queue?queue=a+%26+b-dead
`)
}

// dashboard is the generated file, as far as the tests look at it.
type dashboard struct {
	Templating struct {
		List []struct {
			Name  string
			Query any
		}
	}
	Panels []struct {
		Title, Type string
		GridPos     struct{ X, Y, W, H int }
		FieldConfig struct {
			Defaults struct {
				Unit     string
				Mappings []struct {
					Options map[string]struct{ Text string }
				}
			}
		}
		Targets []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../cmd/weir/generate/dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// Queries about queues, workers and operators use the variable of the dashboard. Panels
// have units, are in rows and do not overlap.
func TestDashboard_Layout(t *testing.T) {
	d := readDashboard(t)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	require.Equal(t, []string{"datasource", "queue", "worker", "operator"}, variables)
	require.Equal(t, "row", d.Panels[0].Type)
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], p.Title)
				require.Less(t, x, 24, p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		for _, target := range p.Targets {
			for prefix, label := range map[string]string{"weir_queue_": "queue", "weir_worker_": "worker", "weir_element": "operator", "weir_calls_": "operator", "weir_retries_": "operator"} {
				metrics := strings.Count(target.Expr, prefix)
				require.Equal(t, metrics > 0, strings.Contains(target.Expr, label+`=~"$`+label+`"`) && metrics > 0, "%s: %s", p.Title, target.Expr)
			}
		}
	}
}

// Each query of the dashboard finds series among the metrics of a worker whose backend is
// down, and the timeline of backends shows its states.
func TestDashboard_Queries(t *testing.T) {
	p := plant{buckets: true}
	lasts := faultBegins + 10*time.Minute
	p.run(t, "down", 2*time.Second, lasts)
	var queries []query
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			if regexp.MustCompile(`weir_(answers_|keys_|backend_limit|partition_lag)`).MatchString(target.Expr) {
				continue // of servers, of backends with limits, and of inputs that know their lag
			}
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")
			for _, variable := range []string{"$queue", "$worker", "$operator"} {
				expr = strings.ReplaceAll(expr, variable, ".*")
			}
			if panel.Type == "state-timeline" {
				states := panel.FieldConfig.Defaults.Mappings[0].Options
				require.Equal(t, "up", states["1"].Text)
				require.Equal(t, "down", states["5"].Text)
				queries = append(queries, query{expr + " == bool 1", faultBegins, []string{`backend="bank"`}},
					query{"max_over_time((" + expr + ")[5m:15s]) == bool 5", lasts - time.Minute, []string{`backend="bank"`}})
			}
			if !strings.Contains(target.Expr, "> 0") && !strings.Contains(target.Expr, "weir_element_failures_total") {
				queries = append(queries, query{"clamp_max(count(" + expr + "), 1)", lasts - time.Minute, []string{""}})
			}
		}
	}
	require.Greater(t, len(queries), 20)
	promtool(t, p.series, queries)
}

// Each query of the pages finds series among the scraped metrics of a worker.
func TestDocumentedQueries(t *testing.T) {
	doc, err := os.ReadFile("../ext/prometheus/weirprom/doc.go")
	require.NoError(t, err)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	p := plant{buckets: true}
	lasts := faultBegins + 10*time.Minute
	var queries []query
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("`([^`\n]*\\b(weir_\\w+)[^`\n]*)`").FindAllStringSubmatch(string(text), -1) {
			if regexp.MustCompile(`(?m)^//\t` + strings.TrimSuffix(m[2], "_bucket") + `\b`).Match(doc) { // not a table
				queries = append(queries, query{"clamp_max(count(" + m[1] + "), 1)", lasts, []string{""}})
			}
		}
	}
	require.Greater(t, len(queries), 15)
	p.run(t, "layer", 2*time.Second, lasts)
	promtool(t, p.series, queries)
}

// The dashboard and the rules use only metrics of weirprom.
func TestGeneratedNames(t *testing.T) {
	doc, err := os.ReadFile("../ext/prometheus/weirprom/doc.go")
	require.NoError(t, err)
	for _, file := range []string{"alerts.yml", "dashboard.json"} {
		text, err := os.ReadFile(filepath.Join("../cmd/weir/generate", file))
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`weir_\w+`).FindAllString(string(text), -1) {
			for _, suffix := range []string{"_sum", "_count", "_bucket"} {
				name = strings.TrimSuffix(name, suffix)
			}
			require.Regexp(t, `(?m)^//\t`+name+`\b`, string(doc), file)
		}
	}
}

// Each alert has a section in the runbook, and the runbook has no sections for other
// alerts.
func TestRunbook(t *testing.T) {
	rules, err := os.ReadFile("../cmd/weir/generate/alerts.yml")
	require.NoError(t, err)
	page, err := os.ReadFile("runbook.md")
	require.NoError(t, err)
	named := func(pattern string, text []byte) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		return all
	}
	alerts := named(`alert: (\w+)`, rules)
	require.Equal(t, alerts, named(`(?m)^## (Weir\w+)$`, page))
	anchors := named(`runbook_url: .*runbook.md#(\w+)`, rules)
	require.Len(t, anchors, len(alerts))
	for i, anchor := range anchors {
		require.Equal(t, strings.ToLower(alerts[i]), anchor)
	}
	require.Len(t, named(`console_url: '(https://console.example/.*)'`, rules), len(alerts))
}
