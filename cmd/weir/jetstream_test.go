package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/message"
)

// startJetStream starts a server on loopback with the stream "retries" as a store, and
// returns its address. seed fills the store.
func startJetStream(t *testing.T, seed func(s store.Store), change ...func(o *server.Options)) (address string) {
	t.Helper()
	listen := func(o *server.Options) {
		o.DontListen, o.Host, o.Port, o.SyncAlways = false, "127.0.0.1", server.RANDOM_PORT, false
	}
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	fill, err := embedded.Start(dir, embedded.Config{Logger: quiet, Options: listen})
	require.NoError(t, err)
	nc, err := fill.Connect()
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	s, err := weirjs.New(t.Context(), js, weirjs.WithStream("retries"), weirjs.WithLogger(quiet))
	require.NoError(t, err)
	_, err = s.Locks().Acquire(t.Context(), "outbox", "host a, process 12", time.Hour)
	require.NoError(t, err)
	seed(s)
	require.NoError(t, s.Close())
	nc.Close()
	if len(change) > 0 { // only now, because the seeding has no user and no certificate
		require.NoError(t, fill.Close())
		fill, err = embedded.Start(dir, embedded.Config{Logger: quiet, Options: func(o *server.Options) {
			for _, f := range append([]func(*server.Options){listen}, change...) {
				f(o)
			}
		}})
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, fill.Close()) })
	_, address, _ = strings.Cut(fill.URL(), "://")
	return address
}

func seedAll(t *testing.T) func(s store.Store) {
	t.Helper()
	return func(s store.Store) { seedQueues(t, s, func() {}) }
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?Z?`)
	ages  = regexp.MustCompile(`\b(\d+m)?\d+s\b|"ageSeconds":[0-9.e+-]+`)
)

// ofNow hides values that depend on the time of the test, because the server uses real
// time.
func ofNow(s string) string {
	return gaps.ReplaceAllString(ages.ReplaceAllString(times.ReplaceAllString(s, "TIME"), "AGE"), "  ")
}

// Output of the read-only commands on JetStream.
func TestJetStream(t *testing.T) {
	t.Parallel()
	address := startJetStream(t, seedAll(t))
	url := "nats://" + address + "/retries"
	for name, args := range map[string]string{
		"list":      "dead list",
		"list-page": "dead list --max 2 --after 3",
		"list-json": "dead list --json --cause permanent --max 1",
		"show":      "dead show orders/0/18",
		"count":     "dead count --provider north",
		"export":    "dead export --key customer-1",
		"layers":    "layers",
		"outbox":    "outbox",
		"requests":  "requests --all",
		"keys":      "keys orders",
	} {
		t.Run(name, func(t *testing.T) {
			r := execute(t, command(t, t.TempDir(), append(strings.Fields(args), "--db", url)...))
			golden(t, "jetstream-"+name+".txt", ofNow(fmt.Sprintf("$ weir %q\n%s---- stderr, status %d\n%s", args, r.stdout, r.status, r.stderr)))
			assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", r.stdout+r.stderr, "control characters")
		})
	}
}

// Effects of the commands on JetStream.
func TestJetStreamChanges(t *testing.T) {
	t.Parallel()
	url := "nats://" + startJetStream(t, seedAll(t)) + "/retries"
	run := func(args ...string) result { return execute(t, command(t, t.TempDir(), append(args, "--db", url)...)) }
	exported := run("dead", "export")
	assert.Equal(t, "Queue orders-dead:\n8 messages written\n", exported.stderr)
	assert.Equal(t, result{"2 messages sent back to \"orders\"\n", "", 0},
		run("dead", "merge", "--queue", "orders-dead", "--to", "orders", "--provider", "north", "--cause", "exhausted", "--rate", "1000", "--yes"))
	assert.Equal(t, result{"1 message removed\n", "", 0}, run("dead", "purge", "--queue", "orders-dead", "--cause", "permanent", "--provider", "north", "--yes"))
	assert.Contains(t, run("layers").stdout, "orders                 2")
	assert.Regexp(t, `all +5\n`, run("dead", "count").stdout)

	file := filepath.Join(t.TempDir(), "dead.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(exported.stdout), 0o600))
	assert.Equal(t, result{"8 messages read: 3 new, 5 there already (--replace replaces them)\n", "", 0}, run("dead", "import", "--queue", "orders-dead", file))
	assert.Equal(t, result{"8 messages read: 0 new, 8 there already (--replace replaces them)\n", "", 0}, run("dead", "import", "--queue", "orders-dead", file))
	assert.Equal(t, result{"8 messages read: 0 new, 8 replaced\n", "", 0}, run("dead", "import", "--queue", "orders-dead", file, "--replace"))
	assert.Regexp(t, `all +8\n`, run("dead", "count").stdout)
	assert.Equal(t, result{"8 messages removed\n", "", 0}, run("dead", "purge", "--queue", "orders-dead", "--all", "--yes"))
	assert.Equal(t, result{"", "No message of queue \"orders-dead\" matches.\n", 0}, run("dead", "list", "--queue", "orders-dead"))
}

// An export of many pages has each message once.
func TestJetStreamPages(t *testing.T) {
	t.Parallel()
	url := "nats://" + startJetStream(t, func(s store.Store) {
		var ms []store.Message
		for i := range 2500 {
			ms = append(ms, store.Message{Meta: message.Meta{ID: fmt.Sprint("m", i)}, Cause: store.Permanent})
		}
		require.NoError(t, s.Put(t.Context(), "orders-dead", ms...))
	}) + "/retries"
	r := execute(t, command(t, t.TempDir(), "dead", "export", "--db", url))
	assert.Equal(t, "Queue orders-dead:\n2500 messages written\n", r.stderr)
	assert.Equal(t, 2500, strings.Count(r.stdout, "\n"))
	r = execute(t, command(t, t.TempDir(), "dead", "list", "--max", "0", "--db", url))
	assert.Equal(t, 2501, strings.Count(r.stdout, "\n"))
}

// permissions are the permissions that docs/jetstream.md lists for the command.
func permissions() *server.Permissions {
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.STREAM.INFO.retries", "$JS.API.STREAM.MSG.GET.retries", "$JS.API.STREAM.MSG.DELETE.retries",
			"weir.store.retries.>", "$JS.API.CONSUMER.CREATE.retries.>", "$JS.API.CONSUMER.MSG.NEXT.retries.>", "$JS.API.CONSUMER.DELETE.retries.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
}

// A user with the listed permissions can run every command. If a permission is missing,
// the error names the subject.
func TestJetStreamPermissions(t *testing.T) {
	users := []*server.User{{Username: "all", Password: "s3cr3t", Permissions: permissions()}}
	without := permissions().Publish.Allow
	for i := range without {
		p := permissions()
		p.Publish.Allow = append(append([]string(nil), without[:i]...), without[i+1:]...)
		users = append(users, &server.User{Username: fmt.Sprint("without-", i), Password: "s3cr3t", Permissions: p})
	}
	p := permissions()
	p.Subscribe.Allow = []string{"nothing"}
	users = append(users, &server.User{Username: "no-inbox", Password: "s3cr3t", Permissions: p})
	address := startJetStream(t, seedAll(t), func(o *server.Options) { o.Users = users })
	run := func(user string, args ...string) result {
		return execute(t, command(t, t.TempDir(), append(args, "--db", "nats://"+user+":s3cr3t@"+address+"/retries")...))
	}
	for _, args := range []string{"dead list", "layers", "dead purge --queue orders-dead --yes orders/0/17", "dead merge --queue orders-dead --to orders --yes orders/0/18"} {
		r := run("all", strings.Fields(args)...)
		assert.Zero(t, r.status, "%s: %s", args, r.stderr)
	}
	for i, subject := range without {
		name := fmt.Sprint("without-", i)
		if strings.Contains(subject, ".DELETE.") {
			continue // used only for a full stream, and without waiting for an answer
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(name, "dead", "purge", "--queue", "orders-dead", fmt.Sprint("orders/0/", 19+i%5), "--yes")
			if r.status == 0 { // a purge needs no further permission
				r = run(name, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "--max", "1", "--yes")
			}
			assert.Equal(t, exitFailed, r.status)
			part, _, _ := strings.Cut(strings.TrimSuffix(subject, ">"), "*")
			assert.Contains(t, r.stderr, `Permissions Violation for Publish to "`+part)
			assert.NotContains(t, r.stderr, "s3cr3t")
		})
	}
	r := run("no-inbox", "layers")
	assert.Equal(t, exitFailed, r.status)
	assert.Contains(t, r.stderr, `Permissions Violation for Subscription to "_INBOX.`)
}

// certificates writes a CA, and a key with a certificate for loopback and for clients.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	return write("ca.pem", "CERTIFICATE", signed), write("cert.pem", "CERTIFICATE", signed), write("key.pem", "EC PRIVATE KEY", der)
}

// TLS with the client's certificate, and a key file in place of a password.
func TestJetStreamSecurity(t *testing.T) {
	ca, cert, key := certificates(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	text, err := os.ReadFile(ca)
	require.NoError(t, err)
	pool.AppendCertsFromPEM(text)
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := user.PublicKey()
	require.NoError(t, err)
	secret, err := user.Seed()
	require.NoError(t, err)
	seedFile := filepath.Join(t.TempDir(), "user.nk")
	require.NoError(t, os.WriteFile(seedFile, secret, 0o600))

	address := startJetStream(t, seedAll(t), func(o *server.Options) {
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
		o.Nkeys = []*server.NkeyUser{{Nkey: public}}
	})
	run := func(url string) result { return execute(t, command(t, t.TempDir(), "layers", "--db", url)) }
	files := "ca=" + ca + "&cert=" + cert + "&key=" + key
	r := run("tls://" + address + "/retries?" + files + "&nkey=" + seedFile)
	assert.Zero(t, r.status, r.stderr)
	assert.Contains(t, r.stdout, "orders-retry-2")
	for _, url := range []string{
		"tls://" + address + "/retries?nkey=" + seedFile,
		"tls://" + address + "/retries?ca=" + ca + "&nkey=" + seedFile,
		"tls://" + address + "/retries?" + files,
		"tls://" + address + "/retries?" + files + "&nkey=" + cert,
		"tls://" + address + "/retries?" + files + "&creds=nothing",
		"tls://" + address + "/retries?ca=nothing",
		"tls://" + address + "/retries?ca=" + key,
	} {
		r := run(url)
		assert.Equal(t, exitFailed, r.status, url)
		assert.NotContains(t, r.stderr, string(secret))
	}
}

// NATS accepts a credentials file, and errors do not contain its secrets.
func TestJetStreamCredentials(t *testing.T) {
	operator, err := nkeys.CreateOperator()
	require.NoError(t, err)
	account, err := nkeys.CreateAccount()
	require.NoError(t, err)
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	public := func(k nkeys.KeyPair) string {
		p, err := k.PublicKey()
		require.NoError(t, err)
		return p
	}
	sign := func(c jwt.Claims, by nkeys.KeyPair) string {
		token, err := c.Encode(by)
		require.NoError(t, err)
		return token
	}
	accountClaims := jwt.NewAccountClaims(public(account))
	accountClaims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
	seed, err := user.Seed()
	require.NoError(t, err)
	creds, err := jwt.FormatUserConfig(sign(jwt.NewUserClaims(public(user)), account), seed)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "weir.creds")
	require.NoError(t, os.WriteFile(file, creds, 0o600))

	system, err := nkeys.CreateAccount()
	require.NoError(t, err)
	resolver := &server.MemAccResolver{}
	require.NoError(t, resolver.Store(public(account), sign(accountClaims, operator)))
	require.NoError(t, resolver.Store(public(system), sign(jwt.NewAccountClaims(public(system)), operator)))
	address := startJetStream(t, func(store.Store) {}, func(o *server.Options) {
		o.TrustedKeys, o.AccountResolver, o.SystemAccount = []string{public(operator)}, resolver, public(system)
	})
	for url, want := range map[string]string{
		"nats://" + address + "/other?creds=" + file: "stream not found", // the account has no streams, but the server answers
		"nats://" + address + "/other":               "Authorization Violation",
	} {
		r := execute(t, command(t, t.TempDir(), "layers", "--db", url))
		assert.Equal(t, exitFailed, r.status)
		assert.Contains(t, r.stderr, want)
		assert.NotContains(t, r.stderr, string(seed))
	}
}

// Errors contain neither passwords nor tokens.
func TestJetStreamURLs(t *testing.T) {
	address := startJetStream(t, seedAll(t), func(o *server.Options) { o.Username, o.Password = "u", "right" })
	dir := t.TempDir()
	for url, want := range map[string]struct {
		status int
		error  string
	}{
		"nats://u:right@" + address + "/other":                         {exitFailed, "stream not found"},
		"nats://u:right@127.0.0.1:1," + address + "/retries":           {exitOK, ""},
		"nats://u:s3cr3t@" + address + "/retries":                      {exitFailed, "Authorization Violation"},
		"nats://s3cr3t@" + address + "/retries":                        {exitFailed, "Authorization Violation"},
		"nats://u:s3cr3t%2Fx@127.0.0.1:1/retries":                      {exitFailed, "no servers available"},
		"nats://u:right@" + address:                                    {exitFailed, "stream not found"}, // the default is "weir"
		"nats://u:s3cr3t@" + address + "/a.b":                          {exitUsage, "is not the name of a stream"},
		"nats://u:s3cr3t/x@" + address + "/retries":                    {exitUsage, "not valid"},
		"nats://u:s3cr3t%zz@" + address + "/retries":                   {exitUsage, "not valid"},
		"nats://u:s3cr3t@a b/retries":                                  {exitUsage, "not valid"},
		"nats://u:s3cr3t@" + address + "/a/b":                          {exitUsage, "not valid"},
		"nats://u:s3cr3t@/retries":                                     {exitUsage, "not valid"},
		"nats:u:s3cr3t@" + address:                                     {exitUsage, "not valid"},
		"nats://" + address + "/retries?password=s3cr3t":               {exitUsage, `parameter "password"`},
		"nats://" + address + "/retries?cert=x":                        {exitUsage, "cert and key belong together"},
		"nats://" + address + "/retries?%zz=s3cr3t":                    {exitUsage, "not valid"},
		"nats://s3cr3t@" + address + "/retries?creds=no%20such%20file": {exitFailed, "no such file"},
	} {
		r := execute(t, command(t, dir, "layers", "--db", url))
		assert.Equal(t, want.status, r.status, "%s: %s", url, r.stderr)
		assert.Contains(t, r.stderr, want.error, url)
		assert.NotContains(t, r.stdout+r.stderr, "s3cr3t", url)
	}
}
