package predicates_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

func TestWithStageReporter(t *testing.T) {
	var outer, inner []predicates.Stage
	ctx := predicates.WithStageReporter(t.Context(), func(s predicates.Stage) { outer = append(outer, s) })
	predicates.ReportStage(ctx, predicates.ClientDispatch)
	predicates.ReportSent(context.WithoutCancel(ctx)).Refused()
	predicates.ReportStage(ctx, predicates.ResponseReceived)
	assert.Equal(t, []predicates.Stage{predicates.ClientDispatch, predicates.NetworkTime, predicates.ResponseReceived}, outer)

	within := predicates.WithStageReporter(ctx, func(s predicates.Stage) { inner = append(inner, s) })
	predicates.ReportStage(within, predicates.NetworkTime)
	silent := predicates.WithStageReporter(within, nil)
	predicates.ReportStage(silent, predicates.NetworkTime)
	predicates.ReportSent(silent).Refused()
	assert.Equal(t, []predicates.Stage{predicates.NetworkTime}, inner)
	assert.Len(t, outer, 3)
}

func TestReportStageReportSentAndRefused_NoReporter(t *testing.T) {
	predicates.ReportStage(t.Context(), predicates.NetworkTime)
	predicates.ReportSent(t.Context()).Refused()
	predicates.SentRequest{}.Refused()
	assert.PanicsWithValue(t, "predicates: ReportStage: no such stage: 4", func() {
		predicates.ReportStage(t.Context(), predicates.ResponseReceived+1)
	})
}
