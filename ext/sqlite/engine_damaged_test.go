package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
)

func TestEngine_DamagedRow(t *testing.T) {
	for what, meta := range map[string]string{"a member": `{"id":"b","visit":"x","reasons":3}`, "the id": `{"id":"%zz"}`, "all": `3`} {
		t.Run(what, func(t *testing.T) {
			db := open(t, filepath.Join(t.TempDir(), "queues.db"))
			s := sqlite.New(db)
			defer func() { require.NoError(t, s.Close()) }()
			storebench.Damaged(t, s, func() {
				_, err := db.Writer().ExecContext(t.Context(), "UPDATE weir_messages SET meta = $1 WHERE position = 2", meta)
				require.NoError(t, err)
			})
		})
	}
}
