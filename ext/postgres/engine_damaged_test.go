//go:build unix

package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
)

func TestEngine_DamagedRow(t *testing.T) {
	newSchema := schemas(t)
	for what, meta := range map[string]string{"a member": `{"id":"b","visit":"x","reasons":3}`, "the id": `{"id":"%zz"}`, "all": `3`} {
		t.Run(what, func(t *testing.T) {
			pool := connect(t, newSchema(t))
			require.NoError(t, postgres.New(pool).Migrate(t.Context()))
			s := postgres.New(pool)
			defer func() { require.NoError(t, s.Close()) }()
			storebench.Damaged(t, s, func() {
				_, err := pool.Exec(t.Context(), "UPDATE weir_messages SET meta = $1 WHERE position = 2", meta)
				require.NoError(t, err)
			})
		})
	}
}
