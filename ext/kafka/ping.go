package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// nextBroker is how long Ping waits for an answer before it asks one more broker: thirty
// brokers within lookEvery.
const nextBroker = 100 * time.Millisecond

// Ping returns nil as soon as one of the client's brokers answers. It asks one more
// broker every 100 ms, and at once after an error, until one answers, all have failed or
// ctx ends. It also ends with a refused authentication. The client's own Ping waits for
// the first broker as long as ctx lasts, even if the broker is silent.
func Ping(ctx context.Context, client *kgo.Client) error {
	if len(client.DiscoveredBrokers()) > 0 {
		_, err := askAny(ctx, knownBrokers(client), askForBrokers)
		return err
	}
	first, err := askAny(ctx, client.SeedBrokers(), askForBrokers)
	if err != nil {
		return err
	}
	// The client has not seen the answer, and would send requests for any broker to a
	// random address. So it forgets the addresses before the one that answered, and gets
	// the brokers' addresses from there. Requests that wait for a silent broker are
	// repeated.
	seeds, _ := client.OptValue(kgo.SeedBrokers).([]string)
	if first.broker == 0 || first.broker >= len(seeds) {
		return client.Ping(ctx)
	}
	if err := client.UpdateSeedBrokers(seeds[first.broker:]...); err != nil {
		return err
	}
	err = client.Ping(ctx)
	if err != nil { // the next Ping begins with all addresses
		err = errors.Join(err, client.UpdateSeedBrokers(seeds...))
	}
	return err
}

// askForBrokers returns a cheap request that any broker answers.
func askForBrokers() kmsg.Request {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	return req
}

func knownBrokers(client *kgo.Client) []*kgo.Broker {
	return append(client.DiscoveredBrokers(), client.SeedBrokers()...)
}

type answer struct {
	broker int
	resp   kmsg.Response
	err    error
}

// askAny sends a request to one broker after the other, as Ping describes.
func askAny(ctx context.Context, brokers []*kgo.Broker, request func() kmsg.Request) (answer, error) {
	asking, enough := context.WithCancel(ctx)
	defer enough()
	answers := make(chan answer, len(brokers)) // late answers do not block
	asked := 0
	askNext := func() {
		if asked == len(brokers) {
			return
		}
		i := asked
		asked++
		go func() { // ends with its request, which asking bounds
			resp, err := brokers[i].Request(asking, request())
			answers <- answer{i, resp, err}
		}()
	}
	next := time.NewTicker(nextBroker) //nolint:forbidigo // the network's time, as that of a context
	defer next.Stop()
	var errs []error
	askNext()
	for len(errs) < len(brokers) {
		select {
		case a := <-answers:
			if a.err == nil {
				return a, nil
			}
			if refused := authentication(a.err); refused != nil {
				return a, refused
			}
			errs = append(errs, a.err)
			if ctx.Err() == nil {
				askNext()
			}
		case <-next.C:
			askNext()
		case <-ctx.Done():
			return answer{}, errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return answer{}, errors.Join(append(errs, context.Cause(ctx))...)
}
