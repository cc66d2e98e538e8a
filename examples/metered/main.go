// Command metered has a language model answer each line of prompts.txt.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliteanswers"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// row is a line of answers.jsonl.
type row struct {
	Prompt string
	Answer string `json:",omitempty"`
	Error  string `json:",omitempty"` // of a prompt without an answer
}

type model struct {
	client *http.Client
	url    string
}

// complete asks the model, and reports the tokens that it has used.
func (m model) complete(ctx context.Context, prompt string) (row, error) {
	request := must(http.NewRequestWithContext(ctx, http.MethodPost, m.url, strings.NewReader(prompt)))
	response, err := m.client.Do(request)
	if err != nil {
		return row{}, err
	}
	defer response.Body.Close()
	if err := httpretry.CheckResponse(response); err != nil {
		return row{}, err
	}
	var reply answer
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
		return row{}, err
	}
	asyncop.ReportCost(ctx, reply.Tokens)
	return row{Prompt: prompt, Answer: reply.Text}, nil
}

// estimate returns about how many tokens a call takes.
func estimate(prompt string) float64 { return float64(len(prompt))/4 + 10 }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	provider := startProvider()
	m := model{&http.Client{Transport: httpretry.Transport(nil)}, provider.url} // or the address of a real one
	tokens := 0.0
	for line := range strings.Lines(string(must(os.ReadFile("prompts.txt")))) {
		tokens += estimate(line)
	}
	fmt.Printf("estimate: %.0f tokens\n", tokens)
	err := run(ctx, m, 100_000)
	provider.summarize()
	if errors.Is(err, asyncop.ErrBudgetSpent) {
		log.Fatal("start again with a larger budget: ", err)
	}
	must(0, err)
}

func run(ctx context.Context, m model, budget float64) error {
	coordinator := must(checkpoint.NewCoordinator(must(files.OpenDir("checkpoints")), checkpoint.WithInterval(5*time.Second)))
	defer coordinator.Close()
	db := must(sqlite.OpenDB(ctx, "answers.db"))
	defer db.Close()
	answers := sqliteanswers.New(db, "summaries of model 1")
	must(0, answers.Migrate(ctx))
	llm := backend.New("llm", backend.CallRate(600, time.Second), backend.AdaptiveRate(2_000, 11_000, time.Second))
	stored := sqliteanswers.Blocking(answers, func(prompt string) string { return prompt }, m.complete)
	call := asyncop.HandleFailure(lookup.New(stored, nil), // equal prompts that are in flight share a call
		func(_ context.Context, f asyncop.Failure[string]) ([]row, error) {
			return []row{{Prompt: f.Element, Error: f.Err.Error()}}, nil
		})
	policy := strategies.ReasonAware(httpretry.Classifier[row](), nil).Idempotent().WithMaxRetriesFor(httpretry.InternalServerError, 2)
	op := asyncop.OrderedWaitWithRetry(call, time.Minute, 500, policy, asyncop.WithName("summaries"),
		asyncop.WithTimeoutFromFirstAttempt(), asyncop.WithDrainRetries(), asyncop.WithBackend(llm, asyncop.Cost(estimate), asyncop.Budget(budget)),
		asyncop.WithCheckpoints(coordinator, asyncop.State[string, row]{Results: codec.JSON[row](), Overflow: -1}))
	source := checkpoint.NewSource(coordinator, "prompts", must(files.OpenLines("prompts.txt")))
	sink := checkpoint.NewSink(coordinator, "answers", files.NewJSONLinesOutput[row]("answers.jsonl"))
	if err := coordinator.Start(); err != nil {
		return err
	}
	go source.Via(op).To(sink)
	select {
	case <-coordinator.Ended():
		return coordinator.Wait()
	case <-ctx.Done(): // Ctrl-C: elements in flight are finished, and the next start continues
		return coordinator.Finish(context.WithoutCancel(ctx), checkpoint.Drain)
	}
}

// must returns v, or ends the program.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
