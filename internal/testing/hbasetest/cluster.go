// Package hbasetest starts a real HBase on loopback: processes of ZooKeeper, a master and
// region servers. It needs Java and the jars of HBase 2.6 in the directory WEIR_HBASE:
//
//	mvn -q -B -f tools/hbase/pom.xml dependency:copy-dependencies -DincludeScope=runtime
//	WEIR_HBASE=$PWD/tools/hbase/target/dependency go test …
//
// Without them a test is skipped, or fails if CI or WEIR_REQUIRE_HBASE is set. A cluster
// with two region servers takes about 20 s of CPU and 1 GB of memory, a single process 5
// s and 300 MB.
package hbasetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const patience = 4 * time.Minute

// Cluster is a running HBase. It belongs to its test's goroutine.
type Cluster struct {
	t       testing.TB
	dir     string
	jars    string
	quorum  string
	servers map[string]*exec.Cmd // region servers by address
}

// Start starts ZooKeeper, a master and n region servers, which end with the test. The
// master may still be starting: repeat the first request to it.
func Start(t testing.TB, n int) *Cluster {
	t.Helper()
	c, ports := newCluster(t, n+2)
	zookeeper, master := ports[0], ports[1]
	classpath := c.configure(zookeeper, map[string]string{
		"hbase.cluster.distributed": "true",
		"hbase.master.port":         strconv.Itoa(master),
	})

	c.run("zookeeper", "128m", classpath, "org.apache.hadoop.hbase.zookeeper.HQuorumPeer")
	c.awaitPort(c.quorum)
	c.run("master", "256m", classpath, "org.apache.hadoop.hbase.master.HMaster", "start")
	for _, port := range ports[2:] {
		c.servers[address(port)] = c.run(fmt.Sprintf("server-%d", port), "256m", classpath,
			"org.apache.hadoop.hbase.regionserver.HRegionServer", "-D", fmt.Sprintf("hbase.regionserver.port=%d", port), "start")
	}
	c.awaitPort(address(master))
	for server := range c.servers {
		c.awaitPort(server)
	}
	return c
}

// StartSingle starts all of HBase in one process, which ends with the test, and may still
// be starting. Its region server cannot be killed alone.
func StartSingle(t testing.TB) *Cluster {
	t.Helper()
	c, ports := newCluster(t, 1)
	classpath := c.configure(ports[0], map[string]string{"hbase.cluster.distributed": "false"})
	c.run("hbase", "300m", classpath, "org.apache.hadoop.hbase.master.HMaster", "start")
	c.awaitPort(c.quorum)
	return c
}

func newCluster(t testing.TB, ports int) (*Cluster, []int) {
	t.Helper()
	jars, err := findJars()
	if err != nil {
		unavailable(t, err)
	}
	free := freePorts(t, ports)
	return &Cluster{t: t, dir: t.TempDir(), jars: jars, quorum: address(free[0]), servers: map[string]*exec.Cmd{}}, free
}

// Quorum returns the address of ZooKeeper, for gohbase.NewClient.
func (c *Cluster) Quorum() string { return c.quorum }

// Kill kills the region server at address with SIGKILL.
func (c *Cluster) Kill(address string) {
	c.t.Helper()
	server, ok := c.servers[address]
	require.True(c.t, ok, "no region server at %s", address)
	require.NoError(c.t, server.Process.Kill())
	_, err := server.Process.Wait()
	require.NoError(c.t, err)
	delete(c.servers, address)
}

func (c *Cluster) configure(zookeeper int, more map[string]string) (classpath string) {
	c.t.Helper()
	properties := map[string]string{
		"hbase.rootdir":                              "file://" + filepath.Join(c.dir, "data"),
		"hbase.tmp.dir":                              filepath.Join(c.dir, "tmp"),
		"hbase.wal.provider":                         "filesystem",
		"hbase.unsafe.stream.capability.enforce":     "false",
		"hbase.zookeeper.quorum":                     "127.0.0.1",
		"hbase.zookeeper.property.clientPort":        strconv.Itoa(zookeeper),
		"hbase.zookeeper.property.clientPortAddress": "127.0.0.1",
		"hbase.zookeeper.property.dataDir":           filepath.Join(c.dir, "zookeeper"),
		"hbase.zookeeper.property.tickTime":          "2000",
		"zookeeper.session.timeout":                  "30000", // a starved server must not lose its session
		"hbase.master.hostname":                      "127.0.0.1",
		"hbase.regionserver.hostname":                "127.0.0.1",
		"hbase.master.info.port":                     "-1",
		"hbase.regionserver.info.port":               "-1",
	}
	maps.Copy(properties, more)
	var text strings.Builder
	text.WriteString("<configuration>\n")
	for name, value := range properties {
		fmt.Fprintf(&text, "<property><name>%s</name><value>%s</value></property>\n", name, value)
	}
	text.WriteString("</configuration>\n")
	conf := filepath.Join(c.dir, "conf")
	require.NoError(c.t, os.Mkdir(conf, 0o700))
	require.NoError(c.t, os.WriteFile(filepath.Join(conf, "hbase-site.xml"), []byte(text.String()), 0o600))
	const log4j = "log4j.rootLogger=WARN,out\n" +
		"log4j.appender.out=org.apache.log4j.ConsoleAppender\n" +
		"log4j.appender.out.layout=org.apache.log4j.PatternLayout\n" +
		"log4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n\n"
	require.NoError(c.t, os.WriteFile(filepath.Join(conf, "log4j.properties"), []byte(log4j), 0o600))
	return conf + string(filepath.ListSeparator) + filepath.Join(c.jars, "*")
}

func (c *Cluster) run(name, memory, classpath string, class ...string) *exec.Cmd {
	c.t.Helper()
	args := []string{"-Xmx" + memory, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath}
	for _, pkg := range []string{
		"java.lang", "java.lang.reflect", "java.nio", "sun.nio.ch", "java.util", "java.util.concurrent", "java.io", "java.net", "jdk.internal.ref",
	} {
		args = append(args, "--add-opens", "java.base/"+pkg+"=ALL-UNNAMED")
	}
	args = append(args, "--add-exports", "java.base/jdk.internal.misc=ALL-UNNAMED",
		"--add-exports", "java.security.jgss/sun.security.krb5=ALL-UNNAMED")
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	require.NoError(c.t, err)
	defer log.Close()
	cmd := exec.Command("java", append(args, class...)...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(c.t, cmd.Start())
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have been killed
		_, _ = cmd.Process.Wait()
		if c.t.Failed() {
			c.t.Logf("the end of %s.log:\n%s", name, tail(log.Name()))
		}
	})
	return cmd
}

func (c *Cluster) awaitPort(address string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}, patience, 100*time.Millisecond, "nothing listens at %s", address)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts returns n free ports outside the range of outgoing connections.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		require.Less(t, tries, 1000, "no free ports")
		port := 20000 + rand.IntN(12000)
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		defer listener.Close() // when all are found, so that they differ
		ports = append(ports, port)
	}
	return ports
}

func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

func findJars() (dir string, err error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", err
	}
	dir = os.Getenv("WEIR_HBASE")
	if dir == "" {
		return "", errors.New("WEIR_HBASE is not set")
	}
	jars, err := filepath.Glob(filepath.Join(dir, "hbase-server-*.jar"))
	if err != nil {
		return "", err
	}
	if len(jars) != 1 {
		return "", fmt.Errorf("%d files hbase-server-*.jar in %s, not 1", len(jars), dir)
	}
	return dir, nil
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("WEIR_REQUIRE_HBASE") != "" {
		t.Fatalf("HBase is required here: %v", err)
	}
	t.Skipf("skipped, this test needs Java and HBase (see package hbasetest): %v", err)
}
