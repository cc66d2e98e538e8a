package bank

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// Patience is how long a client waits for an answer.
const Patience = 300 * time.Millisecond

const idleConnections = 64

// ErrDeclined is what Charge returns for a card that the provider declines. It will
// always decline it.
var ErrDeclined = errors.New("card declined")

// Client charges orders. Safe for concurrent use.
type Client struct {
	// WithoutIDs sends requests without ids.
	WithoutIDs bool

	identity exactlyonce.Client
	http     *http.Client
	calls    atomic.Int64
	inDoubt  atomic.Int64
}

// NewClient returns a client of the providers of a directory. The identity is that of the
// ids: of all clients that charge the same orders.
func NewClient(dir string, identity exactlyonce.Client) *Client {
	return &Client{identity: identity, http: &http.Client{Timeout: Patience, Transport: httpretry.Transport(dialer(dir))}}
}

// dialer finds the providers, which have another address after each start.
func dialer(dir string) *http.Transport {
	return &http.Transport{
		MaxIdleConnsPerHost: idleConnections,
		DialContext: func(ctx context.Context, network, host string) (net.Conn, error) {
			provider, _, _ := strings.Cut(host, ":")
			address, err := os.ReadFile(addressOf(dir, provider))
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, network, string(address))
		},
	}
}

// Charge sends one request. Its id is that of the order: the number in the stream, under
// the identity.
func (c *Client) Charge(ctx context.Context, provider string, o Order) (Payment, error) {
	body, err := json.Marshal(chargeRequest{Order: o.ID, Number: o.Number, Cents: o.Cents})
	if err != nil {
		return Payment{}, err
	}
	ctx = predicates.WithDeduplicated(ctx) // it may be repeated, also if it was lost on the way
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+provider+"/charges", bytes.NewReader(body))
	if err != nil {
		return Payment{}, err
	}
	if !c.WithoutIDs {
		id := exactlyonce.ID{Client: c.identity, Sequence: o.Number, Attempt: asyncop.AttemptFromContext(ctx)}
		req.Header.Set(exactlyonce.Header, id.String())
	}
	c.calls.Add(1)
	resp, err := c.http.Do(req)
	if err != nil {
		if !errors.Is(err, syscall.ECONNREFUSED) {
			c.inDoubt.Add(1)
		}
		return Payment{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if resp.StatusCode == http.StatusPaymentRequired {
		return Payment{}, ErrDeclined
	}
	if err := httpretry.CheckResponse(resp); err != nil {
		return Payment{}, err
	}
	var answer chargeResponse
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return Payment{}, err
	}
	return Payment{Order: o.ID, Provider: provider, Charge: answer.Charge}, nil
}

// Calls returns how many requests were sent, and how many of them were not answered
// although they may have been processed.
func (c *Client) Calls() (all, inDoubt int64) { return c.calls.Load(), c.inDoubt.Load() }
