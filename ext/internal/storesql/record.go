package storesql

import "github.com/weirflow/weir/delivery/store"

// WriteRecord returns the statement of [store.Tx.Write]. It changes no row if the record
// has another version.
func WriteRecord(r store.Record) (query string, args []any) {
	args = []any{r.Kind, r.Name, r.Version}
	switch {
	case r.Value == "":
		return "DELETE FROM weir_records WHERE kind = $1 AND name = $2 AND version = $3", args
	case r.Version == 0:
		return "INSERT INTO weir_records (kind, name, version, value) VALUES ($1, $2, $3 + 1, $4) ON CONFLICT DO NOTHING", append(args, r.Value)
	}
	return "UPDATE weir_records SET version = version + 1, value = $4 WHERE kind = $1 AND name = $2 AND version = $3", append(args, r.Value)
}
