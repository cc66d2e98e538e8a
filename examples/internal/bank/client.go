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

// Patience bounds the wait for an answer.
const Patience = 300 * time.Millisecond

const idleConnections = 64

// ErrDeclined is returned by Charge for a card that the provider always declines.
var ErrDeclined = errors.New("card declined")

// Client charges orders. It is safe for concurrent use.
type Client struct {
	// WithoutIDs sends requests without ids.
	WithoutIDs bool

	identity exactlyonce.Client
	http     *http.Client
	calls    atomic.Int64
	inDoubt  atomic.Int64
}

// NewClient returns a client of the providers in a directory. All clients that charge the
// same orders must share an identity, which is part of the request ids.
func NewClient(dir string, identity exactlyonce.Client) *Client {
	return &Client{identity: identity, http: &http.Client{Timeout: Patience, Transport: httpretry.Transport(dialer(dir))}}
}

// dialer reads a provider's address from its file: it changes with each start.
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

// Charge sends one request. Its id is the order's number, under the client's identity.
func (c *Client) Charge(ctx context.Context, provider string, o Order) (Payment, error) {
	body, err := json.Marshal(chargeRequest{Order: o.ID, Number: o.Number, Cents: o.Cents})
	if err != nil {
		return Payment{}, err
	}
	ctx = predicates.WithDeduplicated(ctx) // may be repeated in doubt
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
	defer resp.Body.Close() //nolint:errcheck // the body was read
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

// Calls returns the number of requests sent, and of failed ones that may have been
// processed.
func (c *Client) Calls() (all, inDoubt int64) { return c.calls.Load(), c.inDoubt.Load() }
