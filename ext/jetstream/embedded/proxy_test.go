package embedded_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy passes connections on to a server, until it is cut.
type proxy struct {
	net.Listener
	target string

	mu    sync.Mutex
	held  chan struct{} // closed when bytes pass again; nil while they do
	cut   bool
	conns map[net.Conn]bool
}

// startProxies starts a proxy before each server of a URL, and returns their URL.
func startProxies(t *testing.T, url string) (all []*proxy, proxied string) {
	t.Helper()
	var urls []string
	for target := range strings.SplitSeq(url, ",") {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		p := &proxy{Listener: l, target: strings.TrimPrefix(target, "nats://"), conns: map[net.Conn]bool{}}
		all, urls = append(all, p), append(urls, "nats://"+l.Addr().String())
		var running sync.WaitGroup
		running.Go(p.serve)
		t.Cleanup(func() {
			p.heal()
			_ = l.Close()
			p.close()
			running.Wait()
		})
	}
	return all, strings.Join(urls, ",")
}

func (p *proxy) serve() {
	var passing sync.WaitGroup
	defer passing.Wait()
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil || !p.note(client, server) {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		passing.Go(func() { p.pass(client, server) })
		passing.Go(func() { p.pass(server, client) })
	}
}

// note notes connections, unless p is cut.
func (p *proxy) note(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

// pass copies what comes from one connection to another, and closes both.
func (p *proxy) pass(from, to net.Conn) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, from)
	}()
	_, _ = io.Copy(&gate{to, p}, from)
}

// gate waits while its proxy holds bytes back.
type gate struct {
	net.Conn
	proxy *proxy
}

func (g *gate) Write(b []byte) (int, error) {
	g.proxy.mu.Lock()
	held := g.proxy.held
	g.proxy.mu.Unlock()
	if held != nil {
		<-held
	}
	return g.Conn.Write(b)
}

// hold holds back all bytes, as a network that drops packets.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = make(chan struct{})
}

// close breaks all connections, and refuses others until heal is called.
func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

// heal undoes hold and close.
func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = false; p.held != nil {
		close(p.held)
		p.held = nil
	}
}
