package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	weirjs "github.com/weirflow/weir/ext/jetstream"
)

// openJetStream opens the store in a stream:
//
//	nats://user:password@host:4222,host:4222/STREAM?ca=FILE
//
// The user without a password is a token. The scheme tls and the parameters ca and cert
// encrypt the connection.
func openJetStream(ctx context.Context, address string, c clock.Clock, denied func(error)) (*database, error) {
	u, err := parseServers(address, "creds", "nkey", "ca", "cert", "key")
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(u.name, ".*> \t\r\n/\\") {
		return nil, usagef("the URL of the database: %q is not the name of a stream: it must not have a dot, a space, a wildcard or a slash", u.name)
	}
	opts, err := natsOptions(u, denied)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(u.servers(u.scheme+"://"), opts...)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	closeConn := func() error {
		nc.Close()
		return nil
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, errors.Join(err, closeConn())
	}
	set := []weirjs.Option{weirjs.WithExistingStream()}
	if u.name != "" { // else the engine's default
		set = append(set, weirjs.WithStream(u.name))
	}
	s, err := weirjs.New(ctx, js, set...)
	if err != nil {
		return nil, errors.Join(err, closeConn())
	}
	return &database{store: inspected{Inspector: s, clock: c}, locks: s.Locks(), closers: []func() error{s.Close, closeConn}}, nil
}

func natsOptions(u servers, denied func(error)) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name("weir"), nats.Timeout(connectTimeout),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				denied(err)
			}
		}),
	}
	switch {
	case u.user == nil:
	case u.password == "":
		opts = append(opts, nats.Token(u.user.Username()))
	default:
		opts = append(opts, nats.UserInfo(u.user.Username(), u.password))
	}
	if file := u.query.Get("creds"); file != "" {
		opts = append(opts, nats.UserCredentials(file))
	}
	if file := u.query.Get("nkey"); file != "" {
		nkey, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return nil, fmt.Errorf("the file %s: %w", file, err)
		}
		opts = append(opts, nkey)
	}
	if config, err := u.tls(); err != nil {
		return nil, err
	} else if config != nil || u.scheme == "tls" {
		opts = append(opts, nats.Secure(config))
	}
	return opts, nil
}
