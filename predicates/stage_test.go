package predicates_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

func TestStageText(t *testing.T) {
	for stage, text := range map[predicates.Stage]string{
		predicates.Unreported:       "unreported",
		predicates.ClientDispatch:   "client dispatch",
		predicates.NetworkTime:      "network time",
		predicates.ResponseReceived: "response received",
	} {
		assert.Equal(t, text, stage.String())
		out, err := json.Marshal(stage)
		require.NoError(t, err)
		assert.Equal(t, `"`+text+`"`, string(out))
		var back predicates.Stage
		require.NoError(t, json.Unmarshal(out, &back))
		assert.Equal(t, stage, back)
	}
	assert.Equal(t, "Stage(9)", predicates.Stage(9).String())
	_, err := predicates.Stage(9).MarshalText()
	require.EqualError(t, err, "predicates: no such stage: 9")
	require.EqualError(t, new(predicates.Stage).UnmarshalText([]byte("Stage(9)")), `predicates: no such stage: "Stage(9)"`)
}

// R1
func TestStagesAreOrderedByTime(t *testing.T) {
	var unset predicates.Stage
	assert.Equal(t, predicates.Unreported, unset)
	assert.Less(t, predicates.Unreported, predicates.ClientDispatch)
	assert.Less(t, predicates.ClientDispatch, predicates.NetworkTime)
	assert.Less(t, predicates.NetworkTime, predicates.ResponseReceived)
}

func TestStageOf(t *testing.T) {
	at := func(s predicates.Stage) error { return &predicates.StageError{Stage: s, Err: errBusy} }
	tests := []struct {
		err            error
		reported, want predicates.Stage
	}{
		{nil, predicates.Unreported, predicates.Unreported},
		{nil, predicates.ResponseReceived, predicates.ResponseReceived},
		{errBusy, predicates.ClientDispatch, predicates.ClientDispatch},
		{at(predicates.ClientDispatch), predicates.Unreported, predicates.ClientDispatch},
		{at(predicates.NetworkTime), predicates.Unreported, predicates.NetworkTime},
		{at(predicates.ClientDispatch), predicates.NetworkTime, predicates.NetworkTime}, // the later stage is the safe one
		{at(predicates.ResponseReceived), predicates.NetworkTime, predicates.ResponseReceived},
		{at(predicates.NetworkTime), predicates.ResponseReceived, predicates.ResponseReceived},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, decision.StageOf(tt.err, tt.reported), "%v, reported %v", tt.err, tt.reported)
		if tt.err != nil {
			for name, err := range chains(tt.err) {
				assert.Equal(t, tt.want, decision.StageOf(err, tt.reported), "%s, reported %v", name, tt.reported)
			}
		}
	}
}

func TestStageErrorIsTheErrorItself(t *testing.T) {
	err := error(&predicates.StageError{Stage: predicates.NetworkTime, Err: os.ErrDeadlineExceeded})
	assert.Equal(t, os.ErrDeadlineExceeded.Error(), err.Error())
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	timeout := func(err error) bool { return (&predicates.StageError{Err: err}).Timeout() }
	assert.True(t, timeout(os.ErrDeadlineExceeded))
	assert.True(t, timeout(fmt.Errorf("read: %w", os.ErrDeadlineExceeded)))
	assert.False(t, timeout(errBusy))
}
