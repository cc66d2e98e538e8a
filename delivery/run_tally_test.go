package delivery_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
)

// Law W4: workers of other versions read the summary in the report of a worker.
func TestSummary_StoredNames(t *testing.T) {
	stored, err := json.Marshal(delivery.Summary{Received: 3, Done: 1, Released: 2})
	require.NoError(t, err)
	require.JSONEq(t, `{"Received":3,"Acknowledged":1,"HandedOver":0,"Rejected":0,"Nacked":0,"GivenBack":2,"Purged":0,"Floods":0,"Elapsed":0}`, string(stored))
}
