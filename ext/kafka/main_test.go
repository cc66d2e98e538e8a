package kafka

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/internal/testing/suite"
)

func TestMain(m *testing.M) {
	killedChild()
	if clustertest.Libs() != "" { // all share one broker
		flag.Parse()
		if err := flag.Set("test.parallel", "1"); err != nil {
			panic(err)
		}
	} else {
		suite.SetParallel(8, 4)
	}
	shared := goleak.IgnoreAnyFunction("github.com/weirflow/weir/ext/kafka/clustertest.(*Broker).launch.func1") // a real broker, which Cleanup ends
	goleak.VerifyTestMain(m, shared, goleak.Cleanup(func(code int) {
		endRealBroker()
		os.Exit(code)
	}))
}
