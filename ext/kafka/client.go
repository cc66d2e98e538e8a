package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/internal/guard"
)

var making sync.Mutex

// makeClient is kgo.NewClient for options that are shared: kgo.NewClient writes to the
// codecs of kgo.ProducerBatchCompression.
func makeClient(opts ...kgo.Opt) (*kgo.Client, error) {
	making.Lock()
	defer making.Unlock()
	return kgo.NewClient(opts...)
}

// newClient returns a client. Its error reports faulty options or a refused
// authentication, which the client would repeat forever. Brokers that do not answer are
// not an error: they may be back soon.
func newClient(opts ...kgo.Opt) (*kgo.Client, error) {
	client, err := makeClient(opts...)
	if err != nil {
		return nil, guard.MarkPermanent(fmt.Errorf("kafka: %w", err))
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookEvery)
	defer cancel()
	if err := authentication(Ping(ctx, client)); err != nil {
		client.CloseAllowingRebalance()
		return nil, err
	}
	return client, nil
}

// authentication returns an error if the brokers refuse the authentication.
func authentication(err error) error {
	for _, refused := range []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState} {
		if errors.Is(err, refused) {
			return guard.MarkPermanent(fmt.Errorf("kafka: the brokers refuse the authentication: %w", err))
		}
	}
	return nil
}

// lacking marks an error as permanent if the principal lacks a right: retries would not
// help.
func lacking(err error, right string) error {
	for _, denied := range []error{
		kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed,
	} {
		if errors.Is(err, denied) {
			return guard.MarkPermanent(fmt.Errorf("the client needs the right %s: %w", right, err))
		}
	}
	return err
}
